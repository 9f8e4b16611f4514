// What all code of the device has.
#pragma once

// The qualifiers of every function that runs and is not a kernel: it is inlined. Functions for
// constants and types alone have no code.
#define DEVICE __device__ __forceinline__

// What the code is compiled for: 900 for sm_90. The emulator of the tests says it itself.
#ifdef __CUDA_ARCH__
#define ARCHITECTURE __CUDA_ARCH__
#endif

// As <math.h> has it, which NVRTC has not.
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
