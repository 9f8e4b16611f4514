// All passes of pointwise losses that treat each element by itself: the loss of each element, the
// gradients of operands that have the full shape, or both; where the loss is reduced, its sum or
// mean too.
//
// Fuses the loss, its derivatives, their scaling and the reduction. One read of every operand, one
// write of every output. Bytes an element, with operands and gradients of s bytes: mean or sum of
// input and target 2s; with the gradient of the input 3s; reduction none 3s; its backward 4s.
//
// Order of summation: the elements form tiles of TILE.elements(), the tiles form segments. A thread
// adds its elements of a segment in order, a block adds its threads, the last block adds the
// segments. Tiles and segments follow from the shape, the strides and the dtypes; the grid only
// decides which block computes which segment.
#include "kernels/elements.cuh"

// The blocks that a multiprocessor is to hold: two, of 64 registers a thread; one, of 128, where
// more dimensions, arrays and doubles would spill.
template <class T, class Layout, unsigned WANTED>
constexpr int blocks_per_multiprocessor =
    Layout::DIMS == 1 || (sizeof(T) == 4 && Layout::OPERANDS + ones_below(WANTED, 32) <= 4) ? 2 : 1;

// EACH_VALUE writes n values, a reduction one: see Results. `scale` multiplies both, and gradients,
// and so does a number behind all other pointers: see Scaling.
template <class T, class Loss, class Layout, Tile TILE, Values VALUES, unsigned WANTED,
          class Result, class... P>
__global__ void __launch_bounds__(TILE.threads, blocks_per_multiprocessor<T, Layout, WANTED>)
    pointwise(Loss loss, double scale, Layout layout, long long n, Results<T, Result> results,
              P... pointer) {
  using Pointers = Tuple<P...>;
  using Work = Worker<T, Loss, Layout, TILE.width, VALUES, WANTED, Result, Pointers>;
  constexpr bool REDUCED = VALUES >= SUM_OF_VALUES;

  const auto factor = Factor::of<WANTED != 0>(results);
  if (factor.is_done) return;
  const Pointers pointers{{pointer}...};
  const double divisor = results.known_denominator();
  const Scaling<Work::ARRAYS, Pointers> scaling{scale, pointers};
  const Reciprocal<T> reciprocal(denominator_of_derivatives<is_masked<Loss>>(divisor), factor.value,
                                 scaling.value());
  Work work{loss, layout, pointers, reciprocal, results.value};
  double* const output = factor.template denominator_output<false>();
  const ReductionOfElements<T, VALUES, TILE.threads, Loss, Result, decltype(scaling)> reduction{
      results, divisor, scaling, output};

  const long long tiles = (n + TILE.elements() - 1) / TILE.elements();
  for (long long segment = blockIdx.x; segment < results.segments; segment += gridDim.x) {
    work.sum = work.denominator = Sum<T>::zero();
    for (long long tile = segment; tile < tiles; tile += results.segments) {
      if ((tile + 1) * TILE.elements() <= n) {
#pragma unroll 1
        for (int first = 0; first < TILE.vectors_per_thread; first += TILE.batch) {
          typename Work::Vectors vectors[TILE.batch];
#pragma unroll
          for (int p = 0; p < TILE.batch; ++p) {
            work.load(vectors[p], first_element<TILE>(tile, first + p));
          }
#pragma unroll
          for (int p = 0; p < TILE.batch; ++p) {
            work.compute(vectors[p], first_element<TILE>(tile, first + p));
          }
        }
      } else {
#pragma unroll 1
        for (int p = 0; p < TILE.vectors_per_thread; ++p) {
          const long long element = first_element<TILE>(tile, p);
          if (element >= n) break;
          if (element + TILE.width <= n) {
            typename Work::Vectors vectors;
            work.load(vectors, element);
            work.compute(vectors, element);
          } else {
            work.compute_singly(element, n);
          }
        }
      }
    }
    if constexpr (REDUCED)
      reduction.template add<false, false>(segment, work.sum, work.denominator);
  }
  if constexpr (REDUCED) reduction.finish(gridDim.x);
}
