// The qualifiers of every function that runs and is not a kernel: it is inlined. Functions for
// constants and types alone have no code.
#pragma once

#define DEVICE __device__ __forceinline__

// As <math.h> has it, which NVRTC has not.
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
