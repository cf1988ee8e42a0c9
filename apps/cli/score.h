// score.h - how good generated images are, by what a classifier says of them: the score that is
// called Inception's on another classifier, and the Frechet distance. Host only, in double: outside
// of the strict arithmetic, and of nothing that a run computes.
//
//   score             exp(mean over x of KL(p(y|x) || p(y))), p(y) the mean of p(y|x): from 1, all
//                     images of one class or no answer, to the number of classes
//   Frechet distance  |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)) of two sets' means and
//                     covariances (over n - 1) of the classifier's last hidden layer; 0: equal
//
// The trace of the root is the sum of the roots of the eigenvalues of L' C2 L, where C1 = L L'.
#ifndef LOCKSTEP_APPS_CLI_SCORE_H
#define LOCKSTEP_APPS_CLI_SCORE_H

#include "arena/base.h"

enum { LK_SCORE_FEATURES_MAX = 2048 };

// What is kept of a set of images.
typedef struct lk_moments {
    uint32_t features, classes;
    uint64_t count;
    double *sum;       // (features)
    double *products;  // (features, features): sums of x[i] * x[j], j <= i
    double *shares;    // (classes): sums of p(y|x)
    double entropy;    // sum over x of sum over y of p(y|x) * log p(y|x)
    double *row;       // (max(features, classes)): scratch
} lk_moments;

// Doubles that the tables of a set take, and those of lk_frechet_distance beside them.
uint64_t lk_moments_doubles(uint32_t features, uint32_t classes);
uint64_t lk_frechet_doubles(uint32_t features);

void lk_moments_start(lk_moments *m, uint32_t features, uint32_t classes, double *memory);
// One image: (features) of the hidden layer, (classes) logits.
void lk_moments_add(lk_moments *m, const float *features, const float *logits);

// Adds another set of the same classifier.
void lk_moments_join(lk_moments *to, const lk_moments *from);

double lk_score(const lk_moments *m);
// Of two sets of at least 2 images each. `scratch`: lk_frechet_doubles.
double lk_frechet_distance(const lk_moments *a, const lk_moments *b, double *scratch);

#endif
