// Products with nvfp4 weights; see product.cuh and few_tokens.cuh.
#include "few_tokens.cuh"

PRODUCTS(NVFP4, nvfp4)
FEW_TOKENS(NVFP4, nvfp4, 1, 2)
FEW_TOKENS(NVFP4, nvfp4, 2, 2)
FEW_TOKENS(NVFP4, nvfp4, 4, 1)
