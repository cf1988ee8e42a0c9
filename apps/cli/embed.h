// embed.h - what the parts of `lockstep embed` share.
#ifndef LOCKSTEP_APPS_EMBED_H
#define LOCKSTEP_APPS_EMBED_H

#include <stdio.h>

#include "ops/graph/program.h"

// A name that a user chose, as a literal: letters and digits as they are, all else escaped.
void lk_embed_string(FILE *file, const char *text);

// The program's tables, and `program`, which is of the spec of lk_embedded_run.
void lk_embed_program(FILE *file, const lk_program *program);

#endif
