// Arrays in the shared memory of a block.
#pragma once
#include "numbers/device.cuh"

// COUNT elements, not initialised: one with a constructor may not be __shared__ as it is. An array
// of another type, COUNT or PLACE is another one.
template <class E, int COUNT, int PLACE = 0>
DEVICE E* shared_array() {
  alignas(E) __shared__ unsigned char memory[COUNT * sizeof(E)];
  return reinterpret_cast<E*>(memory);
}
