// Products of one token with nvfp4 weights; see one_token.cuh.
#include "one_token.cuh"

ONE_TOKEN(NVFP4, nvfp4)
