// Products of one token with int8 weights; see one_token.cuh.
#include "one_token.cuh"

ONE_TOKEN(INT8, int8)
