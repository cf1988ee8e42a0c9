// score.c - see score.h.
#include "apps/cli/score.h"

#include <math.h>
#include <string.h>

// --- moments -------------------------------------------------------------------------------------

uint64_t lk_moments_doubles(uint32_t features, uint32_t classes) {
    return features + (uint64_t)features * features + classes + LK_MAX(features, classes);
}

void lk_moments_start(lk_moments *m, uint32_t features, uint32_t classes, double *memory) {
    *m = (lk_moments){.features = features, .classes = classes};
    memset(memory, 0, lk_moments_doubles(features, classes) * sizeof *memory);
    m->sum = memory;
    m->products = m->sum + features;
    m->shares = m->products + (uint64_t)features * features;
    m->row = m->shares + classes;
}

static void add_answer(lk_moments *m, const float *logits) {
    double most = (double)logits[0], sum = 0;
    for (uint32_t k = 1; k < m->classes; k++) most = fmax(most, (double)logits[k]);
    for (uint32_t k = 0; k < m->classes; k++) {
        m->row[k] = exp((double)logits[k] - most);
        sum += m->row[k];
    }
    for (uint32_t k = 0; k < m->classes; k++) {
        const double p = m->row[k] / sum;
        m->shares[k] += p;
        m->entropy += p * ((double)logits[k] - most - log(sum));
    }
}

void lk_moments_add(lk_moments *m, const float *features, const float *logits) {
    add_answer(m, logits);
    for (uint32_t i = 0; i < m->features; i++) m->row[i] = (double)features[i];
    for (uint32_t i = 0; i < m->features; i++) {
        const double x = m->row[i];
        double *products = m->products + (uint64_t)i * m->features;
        m->sum[i] += x;
        if (x == 0.0) continue;  // behind a ReLU, most of them
        for (uint32_t j = 0; j <= i; j++) products[j] += x * m->row[j];
    }
    m->count++;
}

void lk_moments_join(lk_moments *to, const lk_moments *from) {
    const uint64_t square = (uint64_t)to->features * to->features;
    for (uint32_t i = 0; i < to->features; i++) to->sum[i] += from->sum[i];
    for (uint64_t i = 0; i < square; i++) to->products[i] += from->products[i];
    for (uint32_t k = 0; k < to->classes; k++) to->shares[k] += from->shares[k];
    to->entropy += from->entropy;
    to->count += from->count;
}

double lk_score(const lk_moments *m) {
    double kl = m->entropy / (double)m->count;
    for (uint32_t k = 0; k < m->classes; k++) {
        const double p = m->shares[k] / (double)m->count;
        if (p > 0) kl -= p * log(p);
    }
    return exp(kl);
}

// --- matrices ------------------------------------------------------------------------------------

// Of a set, both halves of it; returns the trace.
static double covariance(const lk_moments *m, double *c) {
    const uint32_t n = m->features;
    const double count = (double)m->count;
    double trace = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j <= i; j++) {
            const double product = m->products[(uint64_t)i * n + j];
            const double value = (product - m->sum[i] * (m->sum[j] / count)) / (count - 1);
            c[(uint64_t)i * n + j] = c[(uint64_t)j * n + i] = value;
        }
        trace += c[(uint64_t)i * n + i];
    }
    return trace;
}

// Cholesky's factor in place, below the diagonal; of a matrix that is no more than semidefinite, as
// that of a unit that is always 0: a pivot of rounding alone makes a column of zeros.
static void factor(uint32_t n, double *c) {
    double largest = 0;
    for (uint32_t i = 0; i < n; i++) largest = fmax(largest, c[(uint64_t)i * n + i]);
    for (uint32_t k = 0; k < n; k++) {
        double *column = c + k;
        double pivot = c[(uint64_t)k * n + k];
        for (uint32_t j = 0; j < k; j++) pivot -= c[(uint64_t)k * n + j] * c[(uint64_t)k * n + j];
        const double root = pivot > largest * n * 1e-15 ? sqrt(pivot) : 0.0;
        column[(uint64_t)k * n] = root;
        for (uint32_t i = k + 1; i < n; i++) {
            const double *row = c + (uint64_t)i * n, *pivots = c + (uint64_t)k * n;
            double value = row[k];
            for (uint32_t j = 0; j < k; j++) value -= row[j] * pivots[j];
            column[(uint64_t)i * n] = root > 0 ? value / root : 0.0;
        }
    }
}

// m = L' c L, by way of t = c L. L's other half is not looked at.
static void enclose(uint32_t n, const double *l, const double *c, double *t, double *m) {
    memset(t, 0, (uint64_t)n * n * sizeof *t);
    memset(m, 0, (uint64_t)n * n * sizeof *m);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n; k++) {
            const double value = c[(uint64_t)i * n + k];
            const double *row = l + (uint64_t)k * n;
            for (uint32_t j = 0; j <= k; j++) t[(uint64_t)i * n + j] += value * row[j];
        }
    }
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t i = 0; i <= k; i++) {
            const double value = l[(uint64_t)k * n + i];
            const double *row = t + (uint64_t)k * n;
            for (uint32_t j = 0; j < n; j++) m[(uint64_t)i * n + j] += value * row[j];
        }
    }
}

// Householder's reflections make of a symmetric matrix one of three diagonals with the same
// eigenvalues: `diagonal` (n) and `beside` (n), whose entry i stands between i - 1 and i.
static void make_tridiagonal(uint32_t n, double *a, double *diagonal, double *beside, double *p) {
    for (uint32_t k = n - 1; k > 0; k--) {
        double *v = a + (uint64_t)k * n;  // row k left of the diagonal: k values
        double square = 0;
        for (uint32_t i = 0; i < k; i++) square += v[i] * v[i];
        const double last = v[k - 1], length = last > 0 ? -sqrt(square) : sqrt(square);
        beside[k] = length;
        diagonal[k] = v[k];
        if (square - last * last <= 0) {
            beside[k] = last;
            continue;
        }
        v[k - 1] = last - length;
        const double half = square - last * length;  // of |v|^2
        double inner = 0;
        for (uint32_t i = 0; i < k; i++) {
            double sum = 0;
            for (uint32_t j = 0; j <= i; j++) sum += a[(uint64_t)i * n + j] * v[j];
            for (uint32_t j = i + 1; j < k; j++) sum += a[(uint64_t)j * n + i] * v[j];
            p[i] = sum / half;
            inner += p[i] * v[i];
        }
        for (uint32_t i = 0; i < k; i++) p[i] -= inner / (2 * half) * v[i];
        for (uint32_t i = 0; i < k; i++) {
            double *row = a + (uint64_t)i * n;
            for (uint32_t j = 0; j <= i; j++) row[j] -= v[i] * p[j] + p[i] * v[j];
        }
    }
    diagonal[0] = a[0];
    beside[0] = 0;
}

// One step of the implicit QL algorithm on entries [first, last] (Wilkinson's shift).
static void ql_step(double *d, double *e, uint32_t first, uint32_t last) {
    double g = (d[first + 1] - d[first]) / (2 * e[first + 1]), r = hypot(g, 1.0);
    double s = 1, c = 1, p = 0;
    g = d[last] - d[first] + e[first + 1] / (g + (g >= 0 ? r : -r));
    for (uint32_t i = last; i-- > first;) {
        double f = s * e[i + 1];
        const double b = c * e[i + 1];
        r = hypot(f, g);
        if (i + 2 <= last) e[i + 2] = r;
        if (r == 0) {
            d[i + 1] -= p;
            if (i + 2 <= last) e[i + 2] = 0;
            return;
        }
        s = f / r;
        c = g / r;
        g = d[i + 1] - p;
        f = (d[i] - g) * s + 2 * c * b;
        p = s * f;
        d[i + 1] = g + p;
        g = c * f - b;
    }
    d[first] -= p;
    e[first + 1] = g;
}

// The eigenvalues take the place of the diagonal.
static void solve_tridiagonal(uint32_t n, double *d, double *e) {
    enum { TRIES = 60 };
    for (uint32_t first = 0; first < n; first++) {
        for (uint32_t tries = 0; tries < TRIES; tries++) {
            uint32_t last = first;
            while (last + 1 < n &&
                   fabs(e[last + 1]) > 1e-16 * (fabs(d[last]) + fabs(d[last + 1]))) {
                last++;
            }
            if (last == first) break;
            ql_step(d, e, first, last);
        }
    }
}

uint64_t lk_frechet_doubles(uint32_t features) {
    return 4 * (uint64_t)features * features + 3 * (uint64_t)features;
}

double lk_frechet_distance(const lk_moments *a, const lk_moments *b, double *scratch) {
    const uint32_t n = a->features;
    const uint64_t square = (uint64_t)n * n;
    double *l = scratch, *c = l + square, *t = c + square, *m = t + square, *d = m + square;
    double distance = covariance(a, l) + covariance(b, c);
    for (uint32_t i = 0; i < n; i++) {
        const double apart = a->sum[i] / (double)a->count - b->sum[i] / (double)b->count;
        distance += apart * apart;
    }
    factor(n, l);
    enclose(n, l, c, t, m);
    make_tridiagonal(n, m, d, d + n, d + 2 * n);
    solve_tridiagonal(n, d, d + n);
    for (uint32_t i = 0; i < n; i++) distance -= 2 * sqrt(fmax(d[i], 0.0));
    return fmax(distance, 0.0);
}
