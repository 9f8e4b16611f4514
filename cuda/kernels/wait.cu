// Waits so many cycles of a multiprocessor: while it does, the host launches all that `cupy-losses
// bench` then times. It moves no bytes.
__global__ void wait(long long cycles) {
  for (const long long start = clock64(); clock64() - start < cycles;) {
  }
}
