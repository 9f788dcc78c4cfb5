// Products with int8 weights; see product.cuh.
#include "product.cuh"

PRODUCTS(INT8, int8)
