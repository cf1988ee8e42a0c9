// pictures.h - the images of --images: an IDX file, an array of NumPy, a PNG file, or a folder of
// PNG files in the order of their names' bytes. All are read before the start. Heap.
#ifndef LOCKSTEP_APPS_CLI_PICTURES_H
#define LOCKSTEP_APPS_CLI_PICTURES_H

#include "io/dataset.h"

// memory   what is to be freed, also after an error; it holds the images, and labels that nobody
//          looks at
lk_status lk_read_pictures(const char *path, void *memory[2], lk_dataset_held *out,
                           lk_error *error);

#endif
