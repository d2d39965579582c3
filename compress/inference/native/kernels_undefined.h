/* Between two sets of instructions. */
#undef KERNEL
#undef TARGET
#undef INSTRUCTIONS
#undef VECTOR
#undef LANES
#undef ZERO
#undef LOAD
#undef STORE
#undef SPREAD
#undef MULTIPLY_ADD
#undef WIDEN
#undef ADD_INT16
#undef MAX_INT16
