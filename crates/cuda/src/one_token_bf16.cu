// Products of one token with bf16 weights; see one_token.cuh.
#include "one_token.cuh"

ONE_TOKEN(BF16, bf16)
