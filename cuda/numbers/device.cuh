// The qualifiers of every function that is not a kernel: it runs on the device and is inlined.
#pragma once

#define DEVICE __device__ __forceinline__
