// What a loss of rows is: the state of a row, how states merge, the loss of the row and the
// gradient of each of its elements.
//
// A struct has its parameters as fields, OPERANDS, WEIGHTED, and
//   READS            bit k: `add` and `gradient` look at each element of operand k, bit OPERANDS:
//                    at the weight of each class
//   prefetch(row)    what is read of a row first; in kernels/rows.cu two rows before its turn
//   prologue(row, prefetched)
//                    the context of a row, with a status; in kernels/rows.cu one row before its
//                    turn
//   find(context, elements)
//                    takes the element of the class from all elements of the row, where one thread
//                    has these: prologue() need not read it then
//   State<N>         what a row accumulates; empty() has nothing. With a member `maximum`, all
//                    threads of a row may get the same elements.largest(), that of the row: see
//                    kernels/row_tiles.cu
//   add<FIRST_BATCH>(state, row, context, elements)
//                    takes a batch of elements, to an empty state where FIRST_BATCH;
//                    elements.each(f) calls f(place, column, x) for each, get<k>(x) being its
//                    number in operand k, `place` that in its vector, and `column` one to compare
//                    with another by !=, see ColumnNear; an f that takes it may be
//                    told `counts`, too: it is false of what the row does not have, whose numbers
//                    are 0; elements.largest(y) is the largest number of the first operand, or y;
//                    elements.PLACES and OF_PLACE: how many places there are, and how many numbers
//                    come to each, see SumsOfPlaces; elements.element<I>(column), for find(), is
//                    what Row::load() gives.
//                    Where elements are held in registers, add() and epilogue() get those of any
//                    row. They must not read what only the context of an active row has.
//   ANCHORED         whether there is add_anchored(state, context, elements): it takes them to an
//                    empty state without elements.largest(), and returns whether that state may
//                    be used; if not, add() takes them
//   HIDES            whether `add` leaves out the element of context.column: it is -inf, or
//                    elements.each(f) says that it does not count
//   merge(a, b)      a and b together; with the same bits as merge(b, a)
//   rescale_to, merge_rescaled
//                    for many states: see below
//   Finished<N>      what epilogue() makes of a row: its `value`, if requested, its `denominator`,
//                    the term of that of a mean, and the factors of its gradients
//   epilogue(row, context, state, valued)
//                    that of an active row
//   scale(finished, f)
//                    replaces each factor x of the gradients by f(x)
//   gradient<K>(row, finished, x)
//                    the derivative of the value by an element of operand K
//   SINGLE           whether the element of context.column has a derivative of its own
//   gradient_of_target(finished)
//                    that derivative, where SINGLE
//
// Structs inherit prefetch(), prologue(), find() and ANCHORED from OfClass, from OfClassOrIgnored,
// or, without a class, from OfRow.
//
// Numbers N are Real<T>, or dual numbers for the derivative of all of this along a tangent, which
// makes a second backward pass. To add a loss: write its struct beside those like it, and its
// public function.
#pragma once
#include "memory/vector.cuh"
#include "numbers/math.cuh"
#include "numbers/tuple.cuh"

// ACTIVE rows have a loss. IGNORED ones have no loss and no gradient, and add nothing to the
// denominator. The loss and the gradients of INVALID ones, whose target is out of range, are NaN.
enum Status { ACTIVE, IGNORED, INVALID };

// The column `offset` behind another one. Neighbours are compared with a column by one instruction
// each: its distance from the first of them is theirs, too.
template <class Column>
struct ColumnNear {
  Column first;
  Column offset;
  friend DEVICE bool operator!=(ColumnNear a, Column b) { return b - a.first != a.offset; }
};

// The class of a row, its element and its weight as they are in memory.
template <class T, class Column, class Element, class Weight>
struct Class {
  Status status;
  Column column;
  Element element;
  Weight own_weight;

  DEVICE auto x() const { return element.number(); }
  DEVICE T weight() const { return convert<T>(own_weight); }
};

template <bool WEIGHTED, class Row>
DEVICE auto class_of(const Row& row, long long index, bool ignored) {
  using T = typename Row::Scalar;
  using Column = typename Row::Column;
  const auto weight_of = [&](Column column) {
    if constexpr (WEIGHTED) {
      return row.load_weight(column);
    } else {
      return T(1);
    }
  };
  // Numbers of 32 bits are extended by zeros, which takes no instruction.
  const auto columns = sizeof(Column) == 4 ? unsigned(row.columns) : row.columns;
  const bool valid = (unsigned long long)(index) < (unsigned long long)(columns);
  Class<T, Column, decltype(row.template load<0>(0)), decltype(weight_of(0))> own;
  own.status = ignored ? IGNORED : valid ? ACTIVE : INVALID;
  own.column = Column(index);
  if (own.status == ACTIVE) {
    own.element = row.template load<0>(own.column);
    own.own_weight = weight_of(own.column);
  }
  return own;
}

// For losses to inherit: what they read of the class of a row, of a class that may be one to
// ignore, or of a row that always counts.
template <bool WEIGHTED>
struct OfClass {
  static constexpr bool ANCHORED = false;
  DEVICE auto prefetch(const auto& row) const { return row.template load_index<1>(); }
  DEVICE auto prologue(const auto& row, auto index) const {
    return class_of<WEIGHTED>(row, (long long)(index), false);
  }
  DEVICE void find(auto& own, const auto& elements) const {
    own.element = elements.template element<0>(own.column);
  }
};
template <bool WEIGHTED>
struct OfClassOrIgnored : OfClass<WEIGHTED> {
  long long ignore_index;
  template <class Integer>
  DEVICE auto prologue(const auto& row, Integer integer) const {
    const auto index = (long long)(integer);
    // An unsigned integer beyond long long turns negative, but is no negative ignore_index.
    const bool beyond = Integer(-1) > Integer(0) && index < 0;
    return class_of<WEIGHTED>(row, index, index == ignore_index && !beyond);
  }
};
struct Always {
  Status status;
};
struct OfRow {
  static constexpr bool WEIGHTED = false, SINGLE = false, HIDES = false;
  static constexpr bool ANCHORED = false;
  DEVICE Nothing prefetch(const auto&) const { return {}; }
  DEVICE Always prologue(const auto&, Nothing) const { return {ACTIVE}; }
  DEVICE void find(const auto&, const auto&) const {}
};

// Many states are merged in two steps. Each is rescaled to the largest maximum, which largest(t)
// finds among those of COUNT threads. Then any two are merged as they are.
template <class State>
DEVICE State rescale_to(const State& state, auto) {
  return state;
}
template <class State>
DEVICE State merge_rescaled(const State& a, const State& b) {
  return merge(a, b);
}
