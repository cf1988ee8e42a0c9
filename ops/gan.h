// gan.h - losses of a generator and a discriminator, of one score. ARITHMETIC.md 4. Freestanding,
// also C++ and CUDA: the reference and the GPU's kernels share it.
//
// The discriminator D gives real examples a score r and made ones a score f. With softplus(z) =
// log(1 + e^z) and the label smoothing s, the losses and what they grow by:
//
//                   generator                    discriminator: of r, and of f
//   wasserstein     -f                -1         -r                      -1              f 1
//   minimax         -softplus(f)      -sigmoid(f)  softplus(-r)     sigmoid(r) - 1   softplus(f)
//   sigmoid(f) modified        softplus(-f)      sigmoid(f) - 1  softplus(r) - r y  sigmoid(r) - y
//   as minimax    y = 1 - s / 2 least_squares   (f - 1)^2 / 2     f - 1      (r - 1)^2 / 2 r - 1
//   f^2 / 2       f hinge           -f                -1         max(1 - r, 0)           -1 or 0
//   max(1 + f, 0) 1 or 0
#ifndef LOCKSTEP_OPS_GAN_H
#define LOCKSTEP_OPS_GAN_H

#include "ops/math.h"

typedef enum lk_gan_kind {
    LK_GAN_WASSERSTEIN,
    LK_GAN_MINIMAX,
    LK_GAN_MODIFIED,
    LK_GAN_LEAST_SQUARES,
    LK_GAN_HINGE,
    LK_GAN_KINDS
} lk_gan_kind;

typedef struct lk_gan {
    uint32_t kind;    // lk_gan_kind
    float smoothing;  // modified, of the discriminator
} lk_gan;

typedef struct lk_gan_loss {
    float loss, slope;
} lk_gan_loss;

// Exact in its size, not in the digits of a small result: log of a sum.
LK_SCALAR float lk_softplusf(float z) {
    const float a = lk_float_from_bits(lk_float_to_bits(z) | 0x80000000u);
    return (z > 0.0f ? z : 0.0f) + lk_logf(0x1p+0f + lk_expf(a));
}

// Of a made example, for the generator.
LK_SCALAR lk_gan_loss lk_gan_generator(uint32_t kind, float f) {
    lk_gan_loss l;
    l.loss = -f;
    l.slope = -0x1p+0f;
    if (kind == (uint32_t)LK_GAN_MINIMAX) {
        l.loss = -lk_softplusf(f);
        l.slope = -lk_sigmoidf(f);
    } else if (kind == (uint32_t)LK_GAN_MODIFIED) {
        l.loss = lk_softplusf(-f);
        l.slope = lk_sigmoidf(f) - 0x1p+0f;
    } else if (kind == (uint32_t)LK_GAN_LEAST_SQUARES) {
        l.slope = f - 0x1p+0f;
        l.loss = (l.slope * l.slope) * 0x1p-1f;
    }
    return l;
}

// Of a real one, for the discriminator.
LK_SCALAR lk_gan_loss lk_gan_real(lk_gan gan, float r) {
    lk_gan_loss l;
    l.loss = -r;
    l.slope = -0x1p+0f;
    if (gan.kind == (uint32_t)LK_GAN_MINIMAX) {
        l.loss = lk_softplusf(-r);
        l.slope = lk_sigmoidf(r) - 0x1p+0f;
    } else if (gan.kind == (uint32_t)LK_GAN_MODIFIED) {
        const float y = 0x1p+0f - gan.smoothing * 0x1p-1f;
        l.loss = lk_softplusf(r) - r * y;
        l.slope = lk_sigmoidf(r) - y;
    } else if (gan.kind == (uint32_t)LK_GAN_LEAST_SQUARES) {
        l.slope = r - 0x1p+0f;
        l.loss = (l.slope * l.slope) * 0x1p-1f;
    } else if (gan.kind == (uint32_t)LK_GAN_HINGE) {
        l.loss = r < 0x1p+0f ? 0x1p+0f - r : 0.0f;
        l.slope = r < 0x1p+0f ? -0x1p+0f : 0.0f;
    }
    return l;
}

// Of a made one, for the discriminator.
LK_SCALAR lk_gan_loss lk_gan_fake(uint32_t kind, float f) {
    lk_gan_loss l;
    l.loss = f;
    l.slope = 0x1p+0f;
    if (kind == (uint32_t)LK_GAN_MINIMAX || kind == (uint32_t)LK_GAN_MODIFIED) {
        l.loss = lk_softplusf(f);
        l.slope = lk_sigmoidf(f);
    } else if (kind == (uint32_t)LK_GAN_LEAST_SQUARES) {
        l.slope = f;
        l.loss = (f * f) * 0x1p-1f;
    } else if (kind == (uint32_t)LK_GAN_HINGE) {
        l.loss = f > -0x1p+0f ? 0x1p+0f + f : 0.0f;
        l.slope = f > -0x1p+0f ? 0x1p+0f : 0.0f;
    }
    return l;
}

#endif
