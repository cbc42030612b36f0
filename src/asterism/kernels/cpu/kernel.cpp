// Exact block-sparse attention on CPUs, forward and backward, over the tiles of a plan (compiler/plan.py).
//
// One row of tiles at a time: its queries are packed once, then its key tiles stream through. Scores are kept
// transposed, [key][query], so that maxima, exponentials and masks run along whole vectors of queries. The softmax is
// computed online (Milakov 2018); the backward pass computes the scores again from the log-sum-exp (Dao 2023).
//
// Every matrix product is C[m][n] += sum_k A[m][k] * B[k][n] over 32-bit units: a unit is one float, or, where the
// machine multiplies bfloat16 natively, a pair of bfloat16 that are neighbours along k. B is stored with n contiguous.
//
// A plan has several passes, each with its own order of queries and keys. A pass continues the softmax that earlier
// passes left in (out, lse), as if their result were one more key.
//
// The interface is C: see Problem, asterism_forward and asterism_backward. interface.py says the same in Python.

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kColumns = 4, kAccumulators = 24;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kColumns = 2, kAccumulators = 12;
#else
constexpr int kLanes = 4, kColumns = 4, kAccumulators = 24;
#endif

constexpr int kGroup = 16;  // queries, or keys, that are skipped together in tiles with masks
constexpr int kMostGroups = 128 / kGroup;
constexpr int kKeysPerStep = 256;  // keys that share one step of the online softmax
constexpr int kRun = 64;             // units of a product that are summed at a time
constexpr int64_t kScratchBytes = 2 << 20;  // float32 copies of half-precision results held at a time, about
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef int32_t Integers __attribute__((vector_size(kLanes * 4)));
typedef float Unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vector x) { *reinterpret_cast<Unaligned*>(to) = x; }

// All lanes hold the four bytes at `from`. Integers, because the bytes may be two bfloat16: an addition of floats would
// take such a pair for a denormal number and flush it to 0 where the process asks for that, or quieten a "NaN".
inline Vector broadcast(const float* from) {
  int32_t bits;
  std::memcpy(&bits, from, 4);
  return reinterpret_cast<Vector>(Integers{} + bits);
}
inline Vector splat(float x) { return broadcast(&x); }
inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

// 2^x to about one unit in the last place for x <= 1; 0 for -infinity, NaN for NaN.
inline Vector exp2(Vector x) {
  const Vector magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vector floor = splat(-150.0f);
  Vector clamped = x < floor ? floor : x;
  Vector shifted = clamped + magic, whole = shifted - magic, f = clamped - whole;
  Vector p = splat(1.535336188319500e-4f);
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.0f;
  Integers exponent = __builtin_convertvector(whole, Integers);
  const Integers least = Integers{} - 126;
  Integers held = exponent < least ? least : exponent;
  Vector power = reinterpret_cast<Vector>((held + 127) << 23);
  Vector result = p * power;
  return x < splat(-126.0f) ? Vector{} : result;
}

inline float bfloat16_to_float(uint16_t x) {
  uint32_t bits = static_cast<uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

inline uint16_t float_to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline void round_to_bfloat16(const float* from, int64_t n, uint16_t* to) {
  int64_t i = 0;
#ifdef __AVX512BF16__
  for (; i + kLanes <= n; i += kLanes) {
    __m256bh x = _mm512_cvtneps_pbh((__m512)load(from + i));
    std::memcpy(to + i, &x, sizeof(x));
  }
#endif
  for (; i < n; ++i) to[i] = float_to_bfloat16(from[i]);
}

// --- matrix products -------------------------------------------------------------------------------------------------

struct FloatUnits {
  static Vector multiply_add(Vector sum, Vector a, Vector b) { return sum + a * b; }
};

#ifdef __AVX512BF16__
struct BFloat16Pairs {
  static Vector multiply_add(Vector sum, Vector a, Vector b) {
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

struct Matrix {  // element (i, j) at data[i * row + j * column]
  const float* data;
  int64_t row, column;
};

template <class Units, bool kAdd, int kRows, int kVectors>
inline void run_of_units(int n_units, Matrix a, const float* b, int64_t b_row, float* c, int64_t c_row) {
  Vector sum[kRows][kVectors];
#pragma GCC unroll 32
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) sum[m][n] = Vector{};
  const float* left = a.data;
  for (int k = 0; k < n_units; ++k, left += a.column, b += b_row) {
    Vector right[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) right[n] = load(b + n * kLanes);
#pragma GCC unroll 32
    for (int m = 0; m < kRows; ++m) {
      Vector factor = broadcast(left + m * a.row);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) sum[m][n] = Units::multiply_add(sum[m][n], factor, right[n]);
    }
  }
#pragma GCC unroll 32
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      float* to = c + m * c_row + n * kLanes;
      store(to, kAdd ? load(to) + sum[m][n] : sum[m][n]);
    }
}

// A sum over many units is the sum of sums over runs of them: rounding errors grow with the length of a run.
template <class Units, bool kAdd, int kRows, int kVectors>
inline void micro_product(int n_units, Matrix a, const float* b, int64_t b_row, float* c, int64_t c_row) {
  const int first = std::min(n_units, kRun);
  run_of_units<Units, kAdd, kRows, kVectors>(first, a, b, b_row, c, c_row);
  for (int done = first; done < n_units; done += kRun) {
    a.data += kRun * a.column;
    b += kRun * b_row;
    run_of_units<Units, true, kRows, kVectors>(std::min(n_units - done, kRun), a, b, b_row, c, c_row);
  }
}

template <class Units, bool kAdd, int kRows, int kVectors>
void row_blocks(int rows, int n_units, Matrix a, const float* b, int64_t b_row, float* c, int64_t c_row) {
  for (; rows >= kRows; rows -= kRows, a.data += kRows * a.row, c += kRows * c_row)
    micro_product<Units, kAdd, kRows, kVectors>(n_units, a, b, b_row, c, c_row);
  if constexpr (kRows > 1) {
    constexpr int kFewer = kRows > 4 ? 4 : kRows / 2;
    if (rows) row_blocks<Units, kAdd, kFewer, kVectors>(rows, n_units, a, b, b_row, c, c_row);
  }
}

// C (+)= A B for A [rows, n_units], B [n_units, columns] and C [rows, columns]; columns is a multiple of kLanes.
template <class Units, bool kAdd>
void product(int rows, int columns, int n_units, Matrix a, const float* b, int64_t b_row, float* c, int64_t c_row) {
  int n = 0;
  for (; n + kColumns * kLanes <= columns; n += kColumns * kLanes)
    row_blocks<Units, kAdd, kAccumulators / kColumns, kColumns>(rows, n_units, a, b + n, b_row, c + n, c_row);
  const int left = (columns - n) / kLanes;
  if constexpr (kColumns > 2) {
    if (left == 3) row_blocks<Units, kAdd, kAccumulators / 3, 3>(rows, n_units, a, b + n, b_row, c + n, c_row);
    if (left == 2) row_blocks<Units, kAdd, kAccumulators / 2, 2>(rows, n_units, a, b + n, b_row, c + n, c_row);
  }
  if (left == 1) row_blocks<Units, kAdd, kAccumulators / 2, 1>(rows, n_units, a, b + n, b_row, c + n, c_row);
}

// --- the interface ---------------------------------------------------------------------------------------------------

extern "C" {

struct Tensor {  // [batch, heads, tokens, features], strides in elements
  void* data;
  int64_t batch, head, token, feature;
};

struct Pass {
  const int32_t *query_index, *key_index;  // null: natural order
  int64_t n_queries, n_keys, n_rows;
  const int64_t* row_offsets;   // [lists, n_rows + 1]
  const int32_t *columns, *kinds;
  const int32_t* list_of_head;  // [heads]; -1: the head has no part in the pass
};

struct Problem {
  int64_t batch, heads, kv_heads, n_queries, n_keys, dim, value_dim, query_offset;
  int64_t tile, n_passes, words;
  const Pass* passes;
  const uint64_t* masks;  // [masks, key of the tile, words]: bit i says whether query i may read the key
  const uint8_t* live;       // [masks + 1, tile / kGroup, 2]: by kind, the first group of keys that a group of queries
                             // may read, and the one after the last
  const uint8_t* has_unread; // [masks + 1]: by kind, whether there are keys that no query of the tile may read
  const uint8_t* key_mask;   // [batch, n_keys] or null
  const int64_t* segments;   // [batch, n_keys] or null
  float scale;
  int32_t is_bfloat16, threads, poison;
  Tensor q, k, v;
  void *out, *residual;  // contiguous, in the dtype of q; residual only for bfloat16
  float* lse;
  Tensor grad_out;  // from here on for the backward pass only
  const float* grad_lse;
  void *grad_q, *grad_k, *grad_v;
};
}

// --- elements: how tokens become units -------------------------------------------------------------------------------

inline int padded(int64_t n) { return static_cast<int>((n + kLanes - 1) / kLanes * kLanes); }

// A few tokens of one head, at the places of a pass's order.
template <class Element>
struct Tokens {
  const Element* data;
  int64_t token, feature;
  const int32_t* index;  // null: natural order
  int64_t first;
  int count, dim;

  const Element* row(int i) const { return data + (index ? index[first + i] : first + i) * token; }
};

// Float tiles: rows [tokens][padded(dim)] serve as A (units along features) and as B (units along tokens).
struct Float32 {
  using Element = float;
  using Units = FloatUnits;
  static constexpr bool kPairs = false, kInPlace = true;

  static int units(int64_t n) { return static_cast<int>(n); }
  static int row_width(int64_t dim) { return padded(dim); }
  static float widen(float x) { return x; }
};

// bfloat16 without native products: widened to float tiles when packed.
struct WidenedBFloat16 {
  using Element = uint16_t;
  using Units = FloatUnits;
  static constexpr bool kPairs = false, kInPlace = false;

  static int units(int64_t n) { return static_cast<int>(n); }
  static int row_width(int64_t dim) { return padded(dim); }
  static float widen(uint16_t x) { return bfloat16_to_float(x); }
};

#ifdef __AVX512BF16__
// bfloat16 with native products: A has pairs along features, B pairs along tokens, so they are packed apart.
struct NativeBFloat16 {
  using Element = uint16_t;
  using Units = BFloat16Pairs;
  static constexpr bool kPairs = true, kInPlace = true;

  static int units(int64_t n) { return static_cast<int>((n + 1) / 2); }
  static int row_width(int64_t dim) { return units(dim); }
  static float widen(uint16_t x) { return bfloat16_to_float(x); }
};

// Pairs along the row: to[j] = (from[2 j], from[2 j + 1]), n a multiple of 2 * kLanes or equal to kLanes.
inline void narrow_row(const float* from, int n, float* to) {
  if (n == kLanes) {
    __m256bh x = _mm512_cvtneps_pbh((__m512)load(from));
    std::memcpy(to, &x, sizeof(x));
    return;
  }
  for (int j = 0; j < n; j += 2 * kLanes) {
    __m512bh x = _mm512_cvtne2ps_pbh((__m512)load(from + j + kLanes), (__m512)load(from + j));
    store(to + j / 2, (Vector)x);
  }
}

// Pairs of rows: to[j] = (even[j], odd[j]). `to` may be `even`.
inline void narrow_pair(const float* even, const float* odd, int n, float* to) {
  for (int j = 0; j < n; j += kLanes) {
    __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)load(even + j)));
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)load(odd + j)));
    store(to + j, (Vector)_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
}
#endif

// Tokens as rows of units along the features, [count][width]; what pads the features is 0.
template <class Kind>
void pack_rows(const Tokens<typename Kind::Element>& tokens, float* to, int width) {
  using Element = typename Kind::Element;
  for (int i = 0; i < tokens.count; ++i, to += width) {
    const Element* from = tokens.row(i);
    if constexpr (Kind::kPairs) {
      Element* pairs = reinterpret_cast<Element*>(to);
      if (tokens.feature == 1)
        std::memcpy(pairs, from, tokens.dim * sizeof(Element));
      else
        for (int d = 0; d < tokens.dim; ++d) pairs[d] = from[d * tokens.feature];
      for (int d = tokens.dim; d < 2 * width; ++d) pairs[d] = 0;
    } else {
      if (tokens.feature == 1)
        for (int d = 0; d < tokens.dim; ++d) to[d] = Kind::widen(from[d]);
      else
        for (int d = 0; d < tokens.dim; ++d) to[d] = Kind::widen(from[d * tokens.feature]);
      for (int d = tokens.dim; d < width; ++d) to[d] = 0;
    }
  }
}

// Rows of units along the features: where the tokens lie if they lie evenly and nothing has to be padded, else packed.
template <class Kind>
Matrix rows_of(const Tokens<typename Kind::Element>& tokens, bool in_place, float* to, int width) {
  constexpr int kPerUnit = sizeof(float) / sizeof(typename Kind::Element);
  if (in_place && Kind::kInPlace && !tokens.index && tokens.feature == 1 && tokens.token % kPerUnit == 0 &&
      tokens.dim == width * kPerUnit)
    return {reinterpret_cast<const float*>(tokens.row(0)), tokens.token / kPerUnit, 1};
  pack_rows<Kind>(tokens, to, width);
  return {to, width, 1};
}

// Rows of pairs along the features as pairs along the tokens, [ceil(count / 2)][width], for native bfloat16.
inline void pair_tokens(const Matrix& rows, int count, int dim, float* to, int width) {
  for (int i = 0; i < count; i += 2, to += width) {
    const uint16_t* even = reinterpret_cast<const uint16_t*>(rows.data + i * rows.row);
    const uint16_t* odd = even + 2 * rows.row;
    uint32_t* pairs = reinterpret_cast<uint32_t*>(to);
    if (i + 1 < count)
      for (int d = 0; d < dim; ++d) pairs[d] = even[d] | static_cast<uint32_t>(odd[d]) << 16;
    else
      for (int d = 0; d < dim; ++d) pairs[d] = even[d];
    for (int d = dim; d < width; ++d) pairs[d] = 0;
  }
}

// [count][width] -> [units][tile] of units, in blocks of 4 x 4; columns beyond count are 0.
inline void transpose(const float* from, int width, int count, int units, float* to, int tile) {
  typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
  const int whole_rows = count / 4 * 4, whole_units = units / 4 * 4;
  for (int i = 0; i < whole_rows; i += 4)
    for (int u = 0; u < whole_units; u += 4) {
      const float* at = from + static_cast<int64_t>(i) * width + u;
      Four a = *reinterpret_cast<const Four*>(at), b = *reinterpret_cast<const Four*>(at + width),
           c = *reinterpret_cast<const Four*>(at + 2 * width), d = *reinterpret_cast<const Four*>(at + 3 * width);
      Four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7),
           cd = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      float* out = to + static_cast<int64_t>(u) * tile + i;
      *reinterpret_cast<Four*>(out) = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
      *reinterpret_cast<Four*>(out + tile) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
      *reinterpret_cast<Four*>(out + 2 * tile) = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5);
      *reinterpret_cast<Four*>(out + 3 * tile) = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
    }
  for (int u = 0; u < units; ++u)
    for (int i = u < whole_units ? whole_rows : 0; i < tile; ++i)
      to[static_cast<int64_t>(u) * tile + i] = i < count ? from[static_cast<int64_t>(i) * width + u] : 0;
}

// --- scratch memory --------------------------------------------------------------------------------------------------

// Working memory of one thread, kept between calls.
class Scratch {
 public:
  explicit Scratch(int64_t floats, bool poison) : used_(0) {
    constexpr int64_t kAlignment = 64;
    thread_local std::vector<float> kept;
    const int64_t needed = floats + kAlignment / sizeof(float);
    if (static_cast<int64_t>(kept.size()) < needed) kept.resize(needed);
    if (poison) std::fill(kept.begin(), kept.end(), std::nanf(""));
    void* start = kept.data();
    size_t space = kept.size() * sizeof(float);
    data_ = static_cast<float*>(std::align(kAlignment, floats * sizeof(float), start, space));
  }
  float* take(int64_t floats) {
    float* start = data_ + used_;
    used_ += (floats + kLanes - 1) / kLanes * kLanes;
    return start;
  }

 private:
  float* data_;
  int64_t used_;
};

// --- one row of tiles ------------------------------------------------------------------------------------------------

// Which queries may read which keys of a tile: bits [key][words], null when all may; what lies outside of live is not
// computed.
struct Allowed {
  const uint64_t* bits;
  const uint8_t* live;
  bool has_unread, nothing;
};

struct Range {
  int begin, end;
  bool operator==(const Range& other) const { return begin == other.begin && end == other.end; }
};

// Calls body(first, past, range) for runs of equal ranges; empty ranges are left out.
template <class Body>
void for_runs(const Range* ranges, int n, Body body) {
  for (int first = 0, past; first < n; first = past) {
    for (past = first + 1; past < n && ranges[past] == ranges[first];) ++past;
    if (ranges[first].begin < ranges[first].end) body(first, past, ranges[first]);
  }
}

template <class Kind>
class Row {
 public:
  using Element = typename Kind::Element;
  using Units = typename Kind::Units;

  // Floats of scratch that a row needs.
  static int64_t scratch(const Problem& p, bool backward) {
    const int64_t t = p.tile, keys = std::max<int64_t>(kKeysPerStep, t), d = padded(p.dim) + padded(p.value_dim);
    int64_t floats = 16 * t + 4 * t * (padded(p.dim) + d) + 2 * keys * t + 2 * keys * padded(p.value_dim) + 64 * kLanes;
    if (backward) floats += 2 * t * t + 8 * t * d;
    return floats;
  }

  Row(const Problem& p, const Pass& pass, Scratch& scratch)
      : p_(p),
        pass_(pass),
        t_(static_cast<int>(p.tile)),
        groups_(t_ / kGroup),
        width_(padded(p.dim)),
        value_width_(padded(p.value_dim)),
        row_width_(Kind::row_width(p.dim)),
        value_row_width_(Kind::row_width(p.value_dim)) {
    highest_ = scratch.take(t_);
    total_ = scratch.take(t_);
    factor_ = scratch.take(t_);
    bits_ = reinterpret_cast<uint64_t*>(scratch.take(4 * t_));
    query_segments_ = reinterpret_cast<int64_t*>(scratch.take(2 * t_));
    rows_ = scratch.take(static_cast<int64_t>(t_) * std::max(width_, value_width_));
    queries_ = scratch.take(static_cast<int64_t>(t_) * width_);
    keys_ = scratch.take(static_cast<int64_t>(t_) * width_);
  }

  // The place in the order, the head's operands, and the packed queries of tile row `row`.
  void begin(int64_t batch, int64_t head, int64_t row) {
    batch_ = batch;
    head_ = head;
    first_ = row * t_;
    count_ = static_cast<int>(std::min<int64_t>(t_, pass_.n_queries - first_));
    const Tokens<Element> q = tokens(p_.q, head, pass_.query_index, first_, count_, p_.dim);
    pack_rows<Kind>(q, rows_, row_width_);
    transpose(rows_, row_width_, count_, Kind::units(p_.dim), queries_, t_);
    if (p_.segments)
      for (int i = 0; i < count_; ++i) query_segments_[i] = p_.segments[batch * p_.n_keys + p_.query_offset + query(i)];
  }

  int64_t query(int i) const { return pass_.query_index ? pass_.query_index[first_ + i] : first_ + i; }
  int64_t key(int64_t column, int j) const {
    return pass_.key_index ? pass_.key_index[column * t_ + j] : column * t_ + j;
  }

 protected:
  Tokens<Element> tokens(const Tensor& x, int64_t head, const int32_t* index, int64_t first, int count, int64_t dim) const {
    const Element* data = static_cast<const Element*>(x.data) + batch_ * x.batch + head * x.head;
    return {data, x.token, x.feature, index, first, count, static_cast<int>(dim)};
  }

  int keys_in(int64_t column) const { return static_cast<int>(std::min<int64_t>(t_, pass_.n_keys - column * t_)); }
  int64_t kv_head() const { return head_ / (p_.heads / p_.kv_heads); }

  Allowed allowed(int64_t column, int32_t kind, int n_keys) {
    const uint64_t* bits = kind ? p_.masks + (kind - 1) * p_.tile * p_.words : nullptr;
    const uint8_t* live = p_.live + static_cast<int64_t>(kind) * groups_ * 2;
    if (!p_.key_mask && !p_.segments) return {bits, live, p_.has_unread[kind] != 0, false};
    const int words = static_cast<int>(p_.words);
    uint64_t any = 0;
    for (int j = 0; j < n_keys; ++j) {
      const int64_t at = batch_ * p_.n_keys + key(column, j);
      const uint64_t readable = !p_.key_mask || p_.key_mask[at] ? ~uint64_t{0} : 0;
      for (int w = 0; w < words; ++w) {
        uint64_t word = readable & (bits ? bits[j * words + w] : ~uint64_t{0});
        if (p_.segments && word) word &= same_segment(p_.segments[at], w);
        bits_[j * words + w] = word;
        any |= word;
      }
    }
    return {bits_, live, true, any == 0};
  }

  uint64_t same_segment(int64_t segment, int w) const {
    uint64_t word = 0;
    const int first = 64 * w, past = std::min(count_, first + 64);
    for (int i = first; i < past; ++i) word |= static_cast<uint64_t>(query_segments_[i] == segment) << (i - first);
    return word;
  }

  // What no query of the tile may read must not get into a product: it may be NaN.
  void clear_unread(const Allowed& may, int n_keys, float* rows, int width) const {
    if (!may.has_unread) return;
    for (int j = 0; j < n_keys; ++j) {
      uint64_t any = 0;
      for (int w = 0; w < p_.words; ++w) any |= may.bits[j * p_.words + w];
      if (!any) std::memset(rows + static_cast<int64_t>(j) * width, 0, width * sizeof(float));
    }
  }

  // Writes the raw scores of a tile, [key][query], within its ranges; keeps the rows of its keys.
  void score(int64_t column, const Allowed& may, int n_keys, float* scores) {
    const auto k = tokens(p_.k, kv_head(), pass_.key_index, column * t_, n_keys, p_.dim);
    find_ranges(may, n_keys);
    key_rows_ = rows_of<Kind>(k, !may.has_unread, keys_, row_width_);
    clear_unread(may, n_keys, keys_, row_width_);
    multiply_live(key_rows_, n_keys, Kind::units(p_.dim), queries_, scores);
  }

  // The keys that each group of queries reads in a tile, and the queries that each group of keys is read by.
  void find_ranges(const Allowed& may, int n_keys) {
    for (int g = 0; g < groups_; ++g)
      ranges_[g] = {std::min(n_keys, may.live[2 * g] * kGroup), std::min(n_keys, may.live[2 * g + 1] * kGroup)};
    key_groups_ = (n_keys + kGroup - 1) / kGroup;
    for (int k = 0; k < key_groups_; ++k) {
      int first = 0, past = groups_;
      while (first < groups_ && !reads(first, k)) ++first;
      while (past > first && !reads(past - 1, k)) --past;
      query_ranges_[k] = {first * kGroup, past * kGroup};
    }
  }

  bool reads(int query_group, int key_group) const {
    return ranges_[query_group].begin <= key_group * kGroup && key_group * kGroup < ranges_[query_group].end;
  }

  // Products of the rows of keys with all queries that may read them, [key][query].
  void multiply_live(const Matrix& rows, int n_keys, int n_units, const float* columns, float* to) const {
    for_runs(query_ranges_, key_groups_, [&](int first, int past, Range queries) {
      const int64_t begin = first * kGroup, end = std::min(n_keys, past * kGroup);
      const Matrix a = {rows.data + begin * rows.row, rows.row, rows.column};
      product<Units, false>(static_cast<int>(end - begin), queries.end - queries.begin, n_units, a,
                            columns + queries.begin, t_, to + begin * t_ + queries.begin, t_);
    });
  }

  // -infinity in place of what bit `i` of `bits` forbids query `i` (i < kLanes).
  static Vector forbid(Vector x, uint32_t bits) {
    Integers lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = 1 << i;
    return ((Integers{} + static_cast<int32_t>(bits)) & lane) != 0 ? x : splat(-kInfinity);
  }

  uint32_t lane_bits(const Allowed& may, int key, int query) const {
    return static_cast<uint32_t>(may.bits[key * p_.words + query / 64] >> (query % 64)) & ((1u << kLanes) - 1);
  }

  const Problem& p_;
  const Pass& pass_;
  const int t_, groups_;
  const int width_, value_width_;  // widths of tiles with units along the tokens ...
  const int row_width_, value_row_width_;  // ... and along the features
  int64_t batch_, head_, first_;
  int count_;
  float *highest_, *total_, *factor_, *rows_, *queries_, *keys_;
  Matrix key_rows_;
  Range ranges_[kMostGroups], query_ranges_[kMostGroups];
  int key_groups_;
  uint64_t* bits_;
  int64_t* query_segments_;
};

// --- forward ---------------------------------------------------------------------------------------------------------

template <class Kind>
class ForwardRow : public Row<Kind> {
  using Base = Row<Kind>;
  using Base::count_, Base::factor_, Base::groups_, Base::highest_, Base::p_, Base::pass_, Base::ranges_, Base::rows_,
      Base::t_, Base::total_, Base::value_row_width_, Base::value_width_;

 public:
  ForwardRow(const Problem& p, const Pass& pass, Scratch& scratch) : Base(p, pass, scratch) {
    const int64_t keys = std::max(kKeysPerStep, t_);
    scores_ = scratch.take(keys * t_);
    values_ = scratch.take((keys + 1) * value_width_);
    sums_ = scratch.take(static_cast<int64_t>(t_) * value_width_);
  }

  // Softmax with nothing read yet, or continued from out and lse of this head.
  void begin(int64_t batch, int64_t head, int64_t row, const float* out, const float* lse) {
    Base::begin(batch, head, row);
    std::fill(sums_, sums_ + static_cast<int64_t>(t_) * value_width_, 0.0f);
    std::fill(highest_, highest_ + t_, -kInfinity);
    std::fill(total_, total_ + t_, 0.0f);
    if (!out) return;
    for (int i = 0; i < count_; ++i) {
      const int64_t at = this->query(i);
      if (lse[at] == -kInfinity) continue;
      highest_[i] = lse[at] * kLog2E;
      total_[i] = 1;
      std::memcpy(sums_ + static_cast<int64_t>(i) * value_width_, out + at * p_.value_dim, p_.value_dim * sizeof(float));
    }
  }

  void read(int64_t begin, int64_t end) {
    const int tiles_per_step = std::max(1, kKeysPerStep / t_);
    while (begin < end) {
      int n_keys = 0;
      const int64_t step_end = std::min(end, begin + tiles_per_step);
      for (; begin < step_end; ++begin) n_keys += read_tile(pass_.columns[begin], pass_.kinds[begin], n_keys);
      if (n_keys) step();
    }
  }

  // Writes out and lse to the places of the queries, or of the tile if `to_tile`.
  void finish(float* out, float* lse, bool to_tile) const {
    for (int i = 0; i < count_; ++i) {
      const int64_t at = to_tile ? i : this->query(i);
      const float inverse = total_[i] == 0 ? 0 : 1 / total_[i];
      const float* from = sums_ + static_cast<int64_t>(i) * value_width_;
      for (int64_t d = 0; d < p_.value_dim; ++d) out[at * p_.value_dim + d] = from[d] * inverse;
      lse[at] = total_[i] == 0 ? -kInfinity : (highest_[i] + std::log2(total_[i])) * kLn2;
    }
  }

 private:
  // Scores and values of one tile behind the `before` keys of this step; returns how many keys there are.
  int read_tile(int64_t column, int32_t kind, int before) {
    const int n_keys = this->keys_in(column);
    const Allowed may = this->allowed(column, kind, n_keys);
    if (may.nothing) return 0;
    float* scores = scores_ + static_cast<int64_t>(before) * t_;
    this->score(column, may, n_keys, scores);
    for (int g = 0; g < groups_; ++g) scale_and_mask(may, g, scores);
    for (int g = 0; g < groups_; ++g) remember(g, before, n_keys);
    const auto v = this->tokens(p_.v, this->kv_head(), pass_.key_index, column * t_, n_keys, p_.value_dim);
    if constexpr (Kind::kPairs) {
      const Matrix rows = rows_of<Kind>(v, !may.has_unread, rows_, value_row_width_);
      this->clear_unread(may, n_keys, rows_, value_row_width_);
      float* values = values_ + static_cast<int64_t>(before / 2) * value_width_;
      pair_tokens(rows, n_keys, v.dim, values, value_width_);
      if (n_keys % 2) std::fill(scores + n_keys * t_, scores + (n_keys + 1) * t_, -kInfinity);
      return n_keys + n_keys % 2;
    } else {
      float* values = values_ + static_cast<int64_t>(before) * value_width_;
      pack_rows<Kind>(v, values, value_width_);
      this->clear_unread(may, n_keys, values, value_width_);
      return n_keys;
    }
  }

  void scale_and_mask(const Allowed& may, int g, float* scores) const {
    const Vector scale = splat(p_.scale * kLog2E);
    const Range keys = ranges_[g];
    for (int i = g * kGroup; i < (g + 1) * kGroup; i += kLanes)
      for (int j = keys.begin; j < keys.end; ++j) {
        float* at = scores + static_cast<int64_t>(j) * t_ + i;
        const Vector x = load(at) * scale;
        store(at, may.bits ? this->forbid(x, this->lane_bits(may, j, i)) : x);
      }
  }

  // Notes which keys of the step a group of queries reads: the tile's range, an odd end filled up to a pair.
  void remember(int g, int before, int n_keys) {
    Range keys = ranges_[g];
    if (keys.begin == keys.end) return;
    if (Kind::kPairs && keys.end == n_keys) keys.end += n_keys % 2;
    keys = {before + keys.begin, before + keys.end};
    Range* last = step_ranges_[g] + n_step_ranges_[g] - 1;
    if (n_step_ranges_[g] && last->end == keys.begin)
      last->end = keys.end;
    else
      step_ranges_[g][n_step_ranges_[g]++] = keys;
  }

  // One step of the online softmax over the scores and values that were read.
  void step() {
    for (int g = 0; g < groups_; ++g) {
      bool rescale = false;
      for (int i = g * kGroup; i < (g + 1) * kGroup; i += kLanes) rescale |= exponentiate(g, i);
      if (rescale) scale_sums(g);
      if constexpr (Kind::kPairs) narrow(g);
    }
    for (int first = 0, past; first < groups_; first = past) {
      for (past = first + 1; past < groups_ && equal_ranges(first, past);) ++past;
      add_values(first, past);
    }
    std::fill(n_step_ranges_, n_step_ranges_ + groups_, 0);
  }

  bool equal_ranges(int a, int b) const {
    return n_step_ranges_[a] == n_step_ranges_[b] &&
           std::equal(step_ranges_[a], step_ranges_[a] + n_step_ranges_[a], step_ranges_[b]);
  }

  // Weights of kLanes queries of a group; true if what was summed before must be scaled down.
  bool exponentiate(int g, int i) {
    const Range *begin = step_ranges_[g], *end = begin + n_step_ranges_[g];
    const Vector before = load(highest_ + i);
    Vector highest = before;
    for (const Range* keys = begin; keys < end; ++keys)
      for (int j = keys->begin; j < keys->end; ++j)
        highest = larger(load(scores_ + static_cast<int64_t>(j) * t_ + i), highest);
    const Vector shift = highest == splat(-kInfinity) ? Vector{} : highest;
    const Vector factor = exp2(before - shift);
    Vector total = load(total_ + i) * factor;
    for (const Range* keys = begin; keys < end; ++keys)
      for (int j = keys->begin; j < keys->end; ++j) {
        float* at = scores_ + static_cast<int64_t>(j) * t_ + i;
        const Vector weight = exp2(load(at) - shift);
        total += weight;
        store(at, weight);
      }
    store(highest_ + i, highest);
    store(total_ + i, total);
    store(factor_ + i, factor);
    return std::any_of(factor_ + i, factor_ + i + kLanes, [](float x) { return x != 1; });
  }

  void scale_sums(int g) {
    for (int i = g * kGroup; i < std::min(count_, (g + 1) * kGroup); ++i) {
      float* sums = sums_ + static_cast<int64_t>(i) * value_width_;
      const Vector factor = splat(factor_[i]);
      for (int d = 0; d < value_width_; d += kLanes) store(sums + d, load(sums + d) * factor);
    }
  }

  // Pairs of keys, at the place of the even one divided by two.
  void narrow(int g) {
#ifdef __AVX512BF16__
    float* scores = scores_ + g * kGroup;
    for (int r = 0; r < n_step_ranges_[g]; ++r)
      for (int j = step_ranges_[g][r].begin / 2; j < step_ranges_[g][r].end / 2; ++j)
        narrow_pair(scores + 2 * j * t_, scores + (2 * j + 1) * t_, kGroup, scores + j * t_);
#endif
  }

  // Adds the weighted values of the step to the queries of groups [first, past), which read the same keys.
  void add_values(int first, int past) {
    const int queries = std::min(count_, past * kGroup) - first * kGroup;
    if (queries <= 0) return;
    for (int r = 0; r < n_step_ranges_[first]; ++r) {
      const int64_t begin = Kind::units(step_ranges_[first][r].begin), end = Kind::units(step_ranges_[first][r].end);
      product<typename Kind::Units, true>(queries, value_width_, static_cast<int>(end - begin),
                                          {scores_ + begin * t_ + first * kGroup, 1, t_}, values_ + begin * value_width_,
                                          value_width_, sums_ + static_cast<int64_t>(first) * kGroup * value_width_,
                                          value_width_);
    }
  }

  float *scores_, *values_, *sums_;
  Range step_ranges_[kMostGroups][kKeysPerStep / kGroup];  // by group of queries, the keys of the step that it reads
  int n_step_ranges_[kMostGroups] = {};
};

// --- backward --------------------------------------------------------------------------------------------------------

template <class Kind>
class BackwardRow : public Row<Kind> {
  using Base = Row<Kind>;
  using Base::count_, Base::first_, Base::groups_, Base::p_, Base::pass_, Base::query_ranges_, Base::ranges_, Base::row_width_, Base::rows_, Base::t_, Base::value_row_width_, Base::value_width_, Base::width_;
  using Units = typename Kind::Units;

 public:
  BackwardRow(const Problem& p, const Pass& pass, Scratch& scratch) : Base(p, pass, scratch) {
    const int64_t t = t_;
    lse_ = this->highest_;
    delta_ = this->total_;
    scores_ = scratch.take(t * t);
    grad_scores_ = scratch.take(t * t);
    narrow_ = scratch.take(t * t);
    grad_out_ = scratch.take(t * value_width_);
    query_rows_ = scratch.take(t * width_);
    grad_out_rows_ = scratch.take(t * value_width_);
    key_pairs_ = scratch.take(t * width_);
    value_rows_ = scratch.take(t * value_width_);
    grad_query_ = scratch.take(t * width_);
    grad_key_ = scratch.take(t * std::max(width_, value_width_));
  }

  void begin(int64_t batch, int64_t head, int64_t row) {
    Base::begin(batch, head, row);
    keep_as_tokens(rows_, row_width_, width_, p_.dim, query_rows_);
    const auto g = this->tokens(p_.grad_out, head, pass_.query_index, first_, count_, p_.value_dim);
    pack_rows<Kind>(g, rows_, value_row_width_);
    transpose(rows_, value_row_width_, count_, Kind::units(p_.value_dim), grad_out_, t_);
    keep_as_tokens(rows_, value_row_width_, value_width_, p_.value_dim, grad_out_rows_);
    for (int i = 0; i < t_; ++i) {
      lse_[i] = kInfinity;
      delta_[i] = 0;
    }
    for (int i = 0; i < count_; ++i) {
      const int64_t at = (batch * p_.heads + head) * p_.n_queries + this->query(i);
      if (p_.lse[at] == -kInfinity) continue;
      lse_[i] = p_.lse[at] * kLog2E;
      delta_[i] = delta(g.row(i), g.feature, at) - p_.grad_lse[at];
    }
    std::fill(grad_query_, grad_query_ + static_cast<int64_t>(t_) * width_, 0.0f);
  }

  // Adds a tile's share to the gradients of its keys and values, [n_keys, dim] in natural order.
  void read(int64_t column, int32_t kind, float* grad_k, float* grad_v) {
    const int n_keys = this->keys_in(column);
    const Allowed may = this->allowed(column, kind, n_keys);
    if (may.nothing) return;
    this->score(column, may, n_keys, scores_);
    const auto v = this->tokens(p_.v, this->kv_head(), pass_.key_index, column * t_, n_keys, p_.value_dim);
    const Matrix value_rows = rows_of<Kind>(v, !may.has_unread, value_rows_, value_row_width_);
    this->clear_unread(may, n_keys, value_rows_, value_row_width_);
    this->multiply_live(value_rows, n_keys, Kind::units(p_.value_dim), grad_out_, grad_scores_);
    for (int g = 0; g < groups_; ++g) differentiate_softmax(may, g);
    clear_unread_groups(n_keys);
    add_to_keys(column, n_keys, as_rows(scores_, n_keys), grad_out_rows_, value_width_, p_.value_dim, grad_v);
    add_to_keys(column, n_keys, as_rows(grad_scores_, n_keys), query_rows_, width_, p_.dim, grad_k);
    add_to_queries(n_keys);
  }

  // Adds the row's gradient to that of the head's queries, [n_queries, dim].
  void finish(float* grad_q) const {
    for (int i = 0; i < count_; ++i) {
      float* to = grad_q + this->query(i) * p_.dim;
      const float* from = grad_query_ + static_cast<int64_t>(i) * width_;
      for (int64_t d = 0; d < p_.dim; ++d) to[d] += from[d];
    }
  }

 private:
  float delta(const typename Kind::Element* grad, int64_t feature, int64_t at) const {
    using Element = typename Kind::Element;
    const Element* out = static_cast<const Element*>(p_.out) + at * p_.value_dim;
    const Element* residual = p_.residual ? static_cast<const Element*>(p_.residual) + at * p_.value_dim : nullptr;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < p_.value_dim; ++d) {
      const float whole = Kind::widen(out[d]) + (residual ? Kind::widen(residual[d]) : 0);
      sum += Kind::widen(grad[d * feature]) * whole;
    }
    return sum;
  }

  // Rows of the tile as B, units along the tokens; tokens beyond count_ are 0.
  void keep_as_tokens(const float* rows, int row_width, int width, int64_t dim, float* to) const {
    if constexpr (Kind::kPairs) {
      pair_tokens({rows, row_width, 1}, count_, static_cast<int>(dim), to, width);
      const int pairs = (count_ + 1) / 2;
      std::fill(to + static_cast<int64_t>(pairs) * width, to + static_cast<int64_t>(t_ / 2) * width, 0.0f);
    } else {
      std::memcpy(to, rows, static_cast<int64_t>(count_) * width * sizeof(float));
      std::fill(to + static_cast<int64_t>(count_) * width, to + static_cast<int64_t>(t_) * width, 0.0f);
    }
  }

  // scores -> weights, gradients of weights -> gradients of scores, in place.
  void differentiate_softmax(const Allowed& may, int g) {
    const Vector scale = splat(p_.scale * kLog2E), outer = splat(p_.scale);
    for (int i = g * kGroup; i < (g + 1) * kGroup; i += kLanes) {
      const Vector lse = load(lse_ + i), delta = load(delta_ + i);
      for (int j = ranges_[g].begin; j < ranges_[g].end; ++j) {
        float *scores = scores_ + static_cast<int64_t>(j) * t_ + i, *grad = grad_scores_ + static_cast<int64_t>(j) * t_ + i;
        Vector x = load(scores) * scale;
        if (may.bits) x = this->forbid(x, this->lane_bits(may, j, i));
        const Vector weight = exp2(x - lse);
        store(scores, weight);
        store(grad, weight * (load(grad) - delta) * outer);
      }
    }
  }

  // What lies between the queries that read a group of keys, but does not read it itself, becomes 0.
  void clear_unread_groups(int n_keys) {
    for (int k = 0; k < this->key_groups_; ++k)
      for (int i = query_ranges_[k].begin; i < query_ranges_[k].end; i += kGroup)
        if (!this->reads(i / kGroup, k)) clear_group(k, i / kGroup, n_keys);
  }

  void clear_group(int k, int g, int n_keys) {
    for (int j = k * kGroup; j < std::min(n_keys, (k + 1) * kGroup); ++j) {
      const int64_t at = static_cast<int64_t>(j) * t_ + g * kGroup;
      std::fill(scores_ + at, scores_ + at + kGroup, 0.0f);
      std::fill(grad_scores_ + at, grad_scores_ + at + kGroup, 0.0f);
    }
  }

  // [key][query] as A with units along the queries.
  Matrix as_rows(const float* from, int n_keys) {
#ifdef __AVX512BF16__
    if constexpr (Kind::kPairs) {
      for (int j = 0; j < n_keys; ++j) narrow_row(from + j * t_, t_, narrow_ + j * t_ / 2);
      return {narrow_, t_ / 2, 1};
    }
#endif
    return {from, t_, 1};
  }

  // Adds the product of the gradients of scores with the tile's keys to the queries.
  void add_to_queries(int n_keys) {
    const float* keys = this->key_rows_.data;
    int64_t key_row = this->key_rows_.row;
#ifdef __AVX512BF16__
    if constexpr (Kind::kPairs) {
      if (n_keys % 2) std::fill(grad_scores_ + n_keys * t_, grad_scores_ + (n_keys + 1) * t_, 0.0f);
      for (int j = 0; j < (n_keys + 1) / 2; ++j)
        narrow_pair(grad_scores_ + 2 * j * t_, grad_scores_ + (2 * j + 1) * t_, t_, grad_scores_ + j * t_);
      pair_tokens(this->key_rows_, n_keys, static_cast<int>(p_.dim), key_pairs_, width_);
      keys = key_pairs_;
      key_row = width_;
    }
#endif
    for_runs(ranges_, groups_, [&](int first, int past, Range read) {
      const int queries = std::min(count_, past * kGroup) - first * kGroup;
      const int64_t begin = Kind::units(read.begin), end = Kind::units(read.end);
      if (queries > 0)
        product<Units, true>(queries, width_, static_cast<int>(end - begin),
                             {grad_scores_ + begin * t_ + first * kGroup, 1, t_}, keys + begin * key_row, key_row,
                             grad_query_ + static_cast<int64_t>(first) * kGroup * width_, width_);
    });
  }

  // Adds the product of a tile's weights, as A, with the tokens of its queries to the tile's keys in `to`.
  void add_to_keys(int64_t column, int n_keys, Matrix weights, const float* tokens, int width, int64_t dim, float* to) {
    const bool in_place = !pass_.key_index && dim == width;
    float* sums = in_place ? to + column * t_ * dim : grad_key_;
    if (!in_place) std::fill(sums, sums + static_cast<int64_t>(n_keys) * width, 0.0f);
    for_runs(query_ranges_, this->key_groups_, [&](int first, int past, Range queries) {
      const int keys = std::min(n_keys, past * kGroup) - first * kGroup;
      const int64_t begin = Kind::units(queries.begin), end = Kind::units(queries.end);
      const Matrix a = {weights.data + first * kGroup * weights.row + begin, weights.row, 1};
      product<Units, true>(keys, width, static_cast<int>(end - begin), a, tokens + begin * width, width,
                           sums + static_cast<int64_t>(first) * kGroup * width, width);
    });
    if (in_place) return;
    for (int j = 0; j < n_keys; ++j) {
      float* row = to + this->key(column, j) * dim;
      const float* from = grad_key_ + static_cast<int64_t>(j) * width;
      for (int64_t d = 0; d < dim; ++d) row[d] += from[d];
    }
  }

  float *lse_, *delta_, *scores_, *grad_scores_, *narrow_, *grad_out_, *query_rows_, *grad_out_rows_, *key_pairs_,
      *value_rows_, *grad_query_, *grad_key_;
};

// --- the loops over heads, passes and rows ---------------------------------------------------------------------------

// How a thread rounds and whether it flushes denormal numbers. Threads of a pool keep what their creator had when they
// started; which of them computes what is chance, so all take the caller's.
struct FloatingPoint {
  std::fenv_t environment;
  FloatingPoint() { std::fegetenv(&environment); }
};

class BorrowedFloatingPoint {
 public:
  explicit BorrowedFloatingPoint(const FloatingPoint& from) { std::fesetenv(&from.environment); }
  ~BorrowedFloatingPoint() { std::fesetenv(&own_.environment); }

 private:
  const FloatingPoint own_;
};

// Runs body(i, scratch) for 0 <= i < n on the problem's threads.
template <class Body>
void in_parallel(const Problem& p, int64_t n, int64_t scratch_floats, Body body) {
  const FloatingPoint callers;
#pragma omp parallel num_threads(std::max(1, p.threads)) if (n > 1 && p.threads > 1)
  {
    const BorrowedFloatingPoint borrowed(callers);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < n; ++i) {
      Scratch scratch(scratch_floats, p.poison);
      body(i, scratch);
    }
  }
}

// Memory for float32 sums.
class Sums {
 public:
  Sums() : data_(nullptr, std::free) {}
  // Room for so many floats, all 0.
  void reset(int64_t floats) {
    if (floats == size_) {
      std::memset(data_.get(), 0, floats * sizeof(float));
      return;
    }
    data_.reset();
    data_.reset(static_cast<float*>(std::calloc(std::max<int64_t>(floats, 1), sizeof(float))));
    size_ = floats;
  }
  float* get() const { return data_.get(); }

 private:
  std::unique_ptr<float, decltype(&std::free)> data_;
  int64_t size_ = -1;
};

// How many heads are worked on at a time, when each needs `bytes` of float32 sums (0: none).
int64_t heads_at_a_time(int64_t heads, int64_t bytes, int64_t least) {
  if (!bytes) return heads;
  return std::clamp<int64_t>(kScratchBytes / bytes, std::min(least, heads), heads);
}

struct Piece {  // entries [begin, end) of a tile row of one head; `part` >= 0 if the row has several pieces
  int64_t unit, row, begin, end, part;
};

// The tile rows of heads [first, past) in a pass, long ones cut so that no piece holds the others up, longest first.
std::vector<Piece> cut_rows(const Problem& p, const Pass& pass, int64_t first, int64_t past, int64_t* parts) {
  std::vector<Piece> pieces;
  int64_t tiles = 0;
  for (int64_t unit = first; unit < past; ++unit) {
    const int32_t list = pass.list_of_head[unit % p.heads];
    if (list < 0) continue;
    const int64_t* offsets = pass.row_offsets + list * (pass.n_rows + 1);
    tiles += offsets[pass.n_rows] - offsets[0];
  }
  const int64_t longest = std::max<int64_t>(64, tiles / (8 * std::max(1, p.threads)));
  *parts = 0;
  for (int64_t unit = first; unit < past; ++unit) {
    const int32_t list = pass.list_of_head[unit % p.heads];
    if (list < 0) continue;
    const int64_t* offsets = pass.row_offsets + list * (pass.n_rows + 1);
    for (int64_t row = 0; row < pass.n_rows; ++row) {
      const int64_t begin = offsets[row], end = offsets[row + 1];
      if (begin == end) continue;
      if (end - begin <= longest || p.threads < 2) {
        pieces.push_back({unit, row, begin, end, -1});
        continue;
      }
      for (int64_t at = begin; at < end; at += longest)
        pieces.push_back({unit, row, at, std::min(end, at + longest), (*parts)++});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.end - a.begin > b.end - b.begin; });
  return pieces;
}

template <class Kind>
class Forward {
 public:
  explicit Forward(const Problem& p) : p_(p), keeps_floats_(!p.is_bfloat16) {}

  void run() {
    const int64_t heads = p_.batch * p_.heads, floats = p_.n_queries * p_.value_dim;
    const int64_t wave = heads_at_a_time(heads, keeps_floats_ ? 0 : floats * 4, 1);
    for (first_ = 0; first_ < heads; first_ += wave) {
      const int64_t past = std::min(heads, first_ + wave);
      if (!keeps_floats_) sums_.reset((past - first_) * floats);
      for (int64_t i = 0; i < p_.n_passes; ++i) run_pass(p_.passes[i], past, i > 0);
      if (!keeps_floats_) in_parallel(p_, past - first_, 0, [&](int64_t i, Scratch&) { round_head(first_ + i); });
    }
  }

 private:
  float* out(int64_t unit) const {
    const int64_t floats = p_.n_queries * p_.value_dim;
    return keeps_floats_ ? static_cast<float*>(p_.out) + unit * floats : sums_.get() + (unit - first_) * floats;
  }
  float* lse(int64_t unit) const { return p_.lse + unit * p_.n_queries; }

  void run_pass(const Pass& pass, int64_t past, bool later) {
    int64_t parts;
    const std::vector<Piece> pieces = cut_rows(p_, pass, first_, past, &parts);
    const int64_t tile_floats = p_.tile * (p_.value_dim + 1);
    Sums partial;
    partial.reset(parts * tile_floats);
    in_parallel(p_, pieces.size(), Row<Kind>::scratch(p_, false), [&](int64_t i, Scratch& scratch) {
      const Piece& piece = pieces[i];
      ForwardRow<Kind> row(p_, pass, scratch);
      const bool whole = piece.part < 0;
      row.begin(piece.unit / p_.heads, piece.unit % p_.heads, piece.row, whole && later ? out(piece.unit) : nullptr,
                lse(piece.unit));
      row.read(piece.begin, piece.end);
      float* part = partial.get() + std::max<int64_t>(piece.part, 0) * tile_floats;
      if (whole)
        row.finish(out(piece.unit), lse(piece.unit), false);
      else
        row.finish(part, part + p_.tile * p_.value_dim, true);
    });
    std::vector<Piece> split;
    std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(split), [](const Piece& x) { return x.part >= 0; });
    std::sort(split.begin(), split.end(), [](const Piece& a, const Piece& b) { return a.part < b.part; });
    for (const Piece& piece : split) merge(pass, piece, partial.get() + piece.part * tile_floats);
  }

  // out and lse of a piece's queries, joined with those of its part.
  void merge(const Pass& pass, const Piece& piece, const float* part) {
    const float* part_lse = part + p_.tile * p_.value_dim;
    const int64_t first = piece.row * p_.tile, count = std::min<int64_t>(p_.tile, pass.n_queries - first);
    for (int64_t i = 0; i < count; ++i) {
      if (part_lse[i] == -kInfinity) continue;
      const int64_t at = pass.query_index ? pass.query_index[first + i] : first + i;
      float& lse = this->lse(piece.unit)[at];
      const float highest = std::max(lse, part_lse[i]);
      const float old_weight = std::exp(lse - highest), new_weight = std::exp(part_lse[i] - highest);
      const float total = old_weight + new_weight;
      float* to = out(piece.unit) + at * p_.value_dim;
      for (int64_t d = 0; d < p_.value_dim; ++d)
        to[d] = (to[d] * old_weight + part[i * p_.value_dim + d] * new_weight) / total;
      lse = highest + std::log(total);
    }
  }

  void round_head(int64_t unit) {
    const int64_t floats = p_.n_queries * p_.value_dim;
    float* sums = out(unit);
    uint16_t* narrow = static_cast<uint16_t*>(p_.out) + unit * floats;
    round_to_bfloat16(sums, floats, narrow);
    for (int64_t i = 0; i < floats; ++i) sums[i] -= bfloat16_to_float(narrow[i]);
    round_to_bfloat16(sums, floats, static_cast<uint16_t*>(p_.residual) + unit * floats);
  }

  const Problem& p_;
  const bool keeps_floats_;
  int64_t first_ = 0;
  Sums sums_;
};

// A thread works on the rows of one key head, or of a part of them, with sums of its own for keys and values, so that
// the order of every addition is fixed.
template <class Kind>
class Backward {
 public:
  explicit Backward(const Problem& p) : p_(p), group_(p.heads / p.kv_heads) {
    const int64_t heads = p.batch * p.kv_heads, threads = std::max(1, p.threads);
    const int64_t floats = p.n_queries * p.dim + p.n_keys * (p.dim + p.value_dim);
    wave_ = heads_at_a_time(heads, p.is_bfloat16 ? floats * 4 : 0, threads);
    parts_ = wave_ % threads == 0 || wave_ >= 4 * threads ? 1 : wave_ < threads ? (threads + wave_ - 1) / wave_ : 2;
    is_direct_ = !p.is_bfloat16 && parts_ == 1;
  }

  void run() {
    const int64_t heads = p_.batch * p_.kv_heads;
    for (first_ = 0; first_ < heads; first_ += wave_) {
      const int64_t count = std::min(wave_, heads - first_);
      if (!is_direct_) {
        grad_k_.reset(count * parts_ * p_.n_keys * p_.dim);
        grad_v_.reset(count * parts_ * p_.n_keys * p_.value_dim);
      }
      for (member_ = 0; member_ < group_; ++member_) run_member(count);
      if (!is_direct_)
        in_parallel(p_, count, 0, [&](int64_t i, Scratch&) {
          collect(grad_k_, i, p_.n_keys * p_.dim, p_.grad_k);
          collect(grad_v_, i, p_.n_keys * p_.value_dim, p_.grad_v);
        });
    }
  }

 private:
  void run_member(int64_t count) {
    const int64_t floats = p_.n_queries * p_.dim;
    if (p_.is_bfloat16) grad_q_.reset(count * floats);
    for (int64_t i = 0; i < p_.n_passes; ++i) {
      const Pass& pass = p_.passes[i];
      in_parallel(p_, count * parts_, Row<Kind>::scratch(p_, true), [&](int64_t task, Scratch& scratch) {
        BackwardRow<Kind> row(p_, pass, scratch);
        run_rows(pass, task / parts_, task % parts_, row);
      });
    }
    if (!p_.is_bfloat16) return;
    in_parallel(p_, count, 0, [&](int64_t i, Scratch&) {
      uint16_t* to = static_cast<uint16_t*>(p_.grad_q) + query_head(i) * floats;
      const float* from = grad_q_.get() + i * floats;
      round_to_bfloat16(from, floats, to);
    });
  }

  int64_t query_head(int64_t i) const { return (first_ + i) * group_ + member_; }  // among batch * heads

  void run_rows(const Pass& pass, int64_t i, int64_t part, BackwardRow<Kind>& row) {
    const int64_t unit = query_head(i), head = unit % p_.heads;
    const int32_t list = pass.list_of_head[head];
    if (list < 0) return;
    const int64_t* offsets = pass.row_offsets + list * (pass.n_rows + 1);
    const int64_t key_floats = p_.n_keys * p_.dim, value_floats = p_.n_keys * p_.value_dim;
    float* grad_q = p_.is_bfloat16 ? grad_q_.get() + i * p_.n_queries * p_.dim
                                   : static_cast<float*>(p_.grad_q) + unit * p_.n_queries * p_.dim;
    float* grad_k = is_direct_ ? static_cast<float*>(p_.grad_k) + (first_ + i) * key_floats
                               : grad_k_.get() + (i * parts_ + part) * key_floats;
    float* grad_v = is_direct_ ? static_cast<float*>(p_.grad_v) + (first_ + i) * value_floats
                               : grad_v_.get() + (i * parts_ + part) * value_floats;
    for (int64_t r = first_row(pass, offsets, part); r < first_row(pass, offsets, part + 1); ++r) {
      if (offsets[r] == offsets[r + 1]) continue;
      row.begin(unit / p_.heads, head, r);
      for (int64_t at = offsets[r]; at < offsets[r + 1]; ++at)
        row.read(pass.columns[at], pass.kinds[at], grad_k, grad_v);
      row.finish(grad_q);
    }
  }

  // Parts are runs of rows with about equally many tiles.
  int64_t first_row(const Pass& pass, const int64_t* offsets, int64_t part) const {
    const int64_t tiles = offsets[pass.n_rows] - offsets[0], wanted = offsets[0] + tiles * part / parts_;
    return std::lower_bound(offsets, offsets + pass.n_rows, wanted) - offsets;
  }

  // The sum over the parts of key head i, in the dtype of the gradients.
  void collect(const Sums& sums, int64_t i, int64_t floats, void* grad) const {
    float* total = sums.get() + i * parts_ * floats;
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t j = 0; j < floats; ++j) total[j] += total[part * floats + j];
    const int64_t at = (first_ + i) * floats;
    if (p_.is_bfloat16)
      round_to_bfloat16(total, floats, static_cast<uint16_t*>(grad) + at);
    else
      std::memcpy(static_cast<float*>(grad) + at, total, floats * sizeof(float));
  }

  const Problem& p_;
  const int64_t group_;
  int64_t wave_, parts_, first_ = 0, member_ = 0;
  bool is_direct_;
  Sums grad_q_, grad_k_, grad_v_;
};

#ifdef __AVX512BF16__
using BFloat16 = NativeBFloat16;
#else
using BFloat16 = WidenedBFloat16;
#endif

}  // namespace

// Where each field lies, as kernels/cpu/interface.py says it too: a structure changed on one side only would be read at
// wrong places.
extern "C" const char* asterism_layout() {
  static const std::string text = [] {
    std::ostringstream lines;
    lines << "group " << kGroup;
#define STRUCTURE(type) lines << "\n" #type " " << sizeof(type)
#define FIELD(type, name) \
  lines << "\n" #type "." #name " at " << offsetof(type, name) << ", " << sizeof(type::name) << " bytes"
    STRUCTURE(Tensor);
    FIELD(Tensor, data), FIELD(Tensor, batch), FIELD(Tensor, head), FIELD(Tensor, token), FIELD(Tensor, feature);
    STRUCTURE(Pass);
    FIELD(Pass, query_index), FIELD(Pass, key_index), FIELD(Pass, n_queries), FIELD(Pass, n_keys), FIELD(Pass, n_rows);
    FIELD(Pass, row_offsets), FIELD(Pass, columns), FIELD(Pass, kinds), FIELD(Pass, list_of_head);
    STRUCTURE(Problem);
    FIELD(Problem, batch), FIELD(Problem, heads), FIELD(Problem, kv_heads), FIELD(Problem, n_queries);
    FIELD(Problem, n_keys), FIELD(Problem, dim), FIELD(Problem, value_dim), FIELD(Problem, query_offset);
    FIELD(Problem, tile), FIELD(Problem, n_passes), FIELD(Problem, words), FIELD(Problem, passes);
    FIELD(Problem, masks), FIELD(Problem, live), FIELD(Problem, has_unread), FIELD(Problem, key_mask);
    FIELD(Problem, segments), FIELD(Problem, scale), FIELD(Problem, is_bfloat16), FIELD(Problem, threads);
    FIELD(Problem, poison), FIELD(Problem, q), FIELD(Problem, k), FIELD(Problem, v), FIELD(Problem, out);
    FIELD(Problem, residual), FIELD(Problem, lse), FIELD(Problem, grad_out), FIELD(Problem, grad_lse);
    FIELD(Problem, grad_q), FIELD(Problem, grad_k), FIELD(Problem, grad_v);
#undef FIELD
#undef STRUCTURE
    return lines.str();
  }();
  return text.c_str();
}

// out, residual and lse must hold 0, 0 and -infinity.
extern "C" void asterism_forward(const Problem* problem) {
  if (problem->is_bfloat16)
    Forward<BFloat16>(*problem).run();
  else
    Forward<Float32>(*problem).run();
}

// The gradients must hold 0.
extern "C" void asterism_backward(const Problem* problem) {
  if (problem->is_bfloat16)
    Backward<BFloat16>(*problem).run();
  else
    Backward<Float32>(*problem).run();
}
