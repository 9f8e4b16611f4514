// Where rows lie, and what the arrays of a row are.
#pragma once
#include "losses/row_combinators.cuh"
#include "losses/row_formula.cuh"  // OfSums, which the text of a kernel may name
#include "memory/layout.cuh"

// Where rows lie: their iteration space, and the step of each array along its row. Bit k of
// VECTORISED: that step is 1 and the vectors of a row are aligned, so that a vector is one access.
// Offset is `unsigned` where all offsets fit and no array runs backwards, along rows or along one.
// `extents`: how many elements of an array may be read from its beginning on: its own, and those
// between its rows. It is 0 if the array runs backwards, or is written meanwhile.
template <int DIMS, int ARRAYS_, unsigned VECTORISED_, class Index_, class Column_, class Offset_>
struct RowLayout {
  using Index = Index_;
  using Column = Column_;
  using Offset = Offset_;
  static constexpr int ARRAYS = ARRAYS_;
  static constexpr unsigned VECTORISED = VECTORISED_;
  Layout<DIMS, ARRAYS, 0u, Index, Offset> rows;
  long long steps[ARRAYS], extents[ARRAYS];

  template <int K>
  DEVICE long long step() const {
    return (VECTORISED >> K & 1u) ? 1 : steps[K];
  }
};

// One row. Arrays: grad_output where VJP, a tangent for each of TANGENTS, the operands of the
// loss, the weights of the classes where WEIGHTED, the mask and the weight of rows, then the
// gradients.
template <class T, class Loss, class Layout, unsigned TANGENTS, bool VJP, class Pointers>
struct RowOf {
  using Scalar = T;
  using Column = typename Layout::Column;
  using N = Select<(TANGENTS != 0), Dual<Real<T>>, Real<T>>;

  static constexpr bool HAS_GRAD_OUTPUT = VJP;
  static constexpr unsigned VECTORISED = Layout::VECTORISED;
  static constexpr int FIRST = int(VJP) + ones_below(TANGENTS, 32);
  static constexpr int SAMPLE = FIRST + Loss::OPERANDS + int(Loss::WEIGHTED);
  static constexpr int INPUTS = SAMPLE + sample_arrays<Loss>;
  template <int I>
  static constexpr int TANGENT = int(VJP) + ones_below(TANGENTS, I);
  template <unsigned WANTED, int I>
  static constexpr int GRADIENT = INPUTS + ones_below(WANTED, I);
  template <int I>
  using Element = Pointee<I, Pointers>;

  // Whether array S is read element by element: an operand that the loss reads so, or its tangent.
  template <int S, int I = 0>
  static __device__ constexpr bool is_read() {
    if constexpr (I > Loss::OPERANDS) {
      return false;
    } else {
      const bool own = S == FIRST + I;
      const bool tangent = bool(TANGENTS >> I & 1u) && S == TANGENT<I>;
      return (bool(Loss::READS >> I & 1u) && (own || tangent)) || is_read<S, I + 1>();
    }
  }

  const Layout& layout;
  const Pointers& pointers;
  typename decltype(Layout::rows)::Location at;
  Column columns;

  // Row `index` of n. Behind the last one it stands for that, and nothing of it is used.
  static DEVICE RowOf at_index(const Layout& layout, const Pointers& pointers,
                               typename Layout::Index index, typename Layout::Index n,
                               Column columns) {
    return {layout, pointers, layout.rows.locate(min(index, n - 1)), columns};
  }

  template <int K>
  DEVICE auto* address(Column column) const {
    return get<K>(pointers) + at.offset[K] + (long long)(column)*layout.template step<K>();
  }
  // The same of an element that is there: its offset is computed as narrow as it is.
  template <int K>
  DEVICE auto* element(Column column) const {
    using Offset = typename Layout::Offset;
    const Offset behind = Offset(column) * Offset(layout.template step<K>());
    return get<K>(pointers) + (at.offset[K] + behind);
  }
  // Changes an element of array S: a gradient, or what has a copy in shared memory.
  template <int S>
  DEVICE void set(Column column, T x) const {
    using E = Element<S>;
    *const_cast<E*>(address<S>(column)) = convert<E>(x);
  }
  // Whether `count` elements from an address on may be read. A vector in which the row begins or
  // ends then takes no longer than others.
  template <int K>
  DEVICE bool may_read(const auto* from, int count) const {
    const long long first = from - get<K>(pointers);
    return first >= 0 && first + count <= layout.extents[K];
  }
  // An element as it is in memory. Nothing waits for it before its number is needed.
  template <int I>
  struct Loaded {
    static constexpr bool HAS_SLOPE = bool(TANGENTS >> I & 1u);
    static constexpr int SLOPE = HAS_SLOPE ? TANGENT<I> : FIRST + I;
    Element<FIRST + I> value;
    Element<SLOPE> slope;

    DEVICE N number() const {
      const Real<T> real(convert<T>(value));
      if constexpr (HAS_SLOPE) {
        return N(real, Real<T>(convert<T>(slope)));
      } else {
        return N(real);
      }
    }
  };
  template <int I>
  DEVICE Loaded<I> load(Column column) const {
    return {*element<FIRST + I>(column), *element<Loaded<I>::SLOPE>(column)};
  }
  template <int I>
  DEVICE N number(Column column) const {
    return load<I>(column).number();
  }
  template <int I>
  DEVICE auto load_index(Column column = 0) const {
    return *address<FIRST + I>(column);
  }
  template <int I>
  DEVICE long long index(Column column) const {
    const auto loaded = load_index<I>(column);
    using Integer = decltype(load_index<I>(column));
    // An unsigned integer beyond long long turns negative: it is large, and out of range.
    const auto index = (long long)(loaded);
    return Integer(-1) > Integer(0) && index < 0 ? 0x7fffffffffffffffll : index;
  }
  DEVICE auto load_weight(Column column) const { return *address<FIRST + Loss::OPERANDS>(column); }
  template <int I>
  DEVICE auto load_of_sample() const {
    return *address<SAMPLE + I>(0);
  }
  DEVICE T grad_output() const { return convert<T>(*address<0>(0)); }
  // By how many elements the row begins behind a multiple of UNIT.
  template <int UNIT>
  DEVICE Column shift() const {
    const auto start = reinterpret_cast<unsigned long long>(address<FIRST>(0));
    return Column(start / sizeof(Element<FIRST>) % UNIT);
  }
};
