#include "moesaic/codec/gradient_scales.h"

#include <algorithm>
#include <cstring>

#include "moesaic/codec/corrupt.h"
#include "moesaic/codec/exponent_shift.h"

namespace moesaic::codec {
namespace {

constexpr int kQuarters = 4, kMaxMean = 255 * kQuarters;
// Of a row or column, at most so many words tell its scale: the mean's error is then a tenth of an octave.
constexpr std::uint64_t kSampled = 128;
constexpr std::size_t kPieceBytes = 24;
// A run without column scales reads zeros from here.
constexpr std::size_t kRun = 1024;
constexpr std::int16_t kNoColumns[kRun] = {};

constexpr std::uint64_t kMostWords = std::uint64_t{1} << 48;  // no sum of words and columns overflows

int exponent_of(std::uint16_t word) { return word >> 7 & 255; }

std::uint64_t stride_of(std::uint64_t n) { return std::max<std::uint64_t>(1, n / kSampled); }

// Mean of `sum` over `count`, to the nearest.
int mean_of(std::int64_t sum, std::int64_t count) {
  if (count == 0) return 0;
  const std::int64_t twice = 2 * sum + count;
  return static_cast<int>(twice >= 0 ? twice / (2 * count) : -((-twice + 2 * count - 1) / (2 * count)));
}

std::int16_t as_byte(int scale) { return static_cast<std::int16_t>(std::clamp(scale, -128, 127)); }

template <typename T>
void put(std::vector<std::uint8_t>& out, T value) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

std::span<const std::uint8_t> take(std::span<const std::uint8_t>& bytes, std::uint64_t n) {
  check_bytes(n <= bytes.size(), "gradient scales: {} bytes left, expected {} or more", bytes.size(), n);
  const auto taken = bytes.first(static_cast<std::size_t>(n));
  bytes = bytes.subspan(static_cast<std::size_t>(n));
  return taken;
}

template <typename T>
T take(std::span<const std::uint8_t>& bytes) {
  T value;
  std::memcpy(&value, take(bytes, sizeof value).data(), sizeof value);
  return value;
}

std::vector<std::int16_t> take_scales(std::span<const std::uint8_t>& bytes, std::uint64_t n) {
  std::vector<std::int16_t> scales;
  for (const std::uint8_t byte : take(bytes, n)) scales.push_back(static_cast<std::int8_t>(byte));
  return scales;
}

}  // namespace

std::vector<GradientScales::Cut> GradientScales::cuts_of(std::span<const GradientPiece> pieces) {
  std::vector<Cut> cuts;
  std::size_t begin = 0;
  for (const GradientPiece& piece : pieces) {
    const std::uint64_t matrix = std::uint64_t{piece.rows} * piece.cols;
    require(matrix > 0, "a gradient's piece is of matrices [{}, {}]; expected a row and a column or more",
            piece.rows, piece.cols);
    require(piece.words <= kMostWords - begin,
            "a gradient's pieces have {} and {} words; expected 2^48 in all at most", begin, piece.words);
    const std::size_t end = begin + piece.words;
    if (matrix < kFewestWords) {
      if (piece.words > 0) cuts.push_back({begin, piece.words, piece.words, 0, 0, {}, {}});
      begin = end;
      continue;
    }
    for (std::uint64_t at = piece.offset % matrix; begin < end; at = 0) {
      const auto words = static_cast<std::size_t>(std::min<std::uint64_t>(end - begin, matrix - at));
      cuts.push_back({begin, words, piece.cols, at % piece.cols, 0, {}, {}});
      begin += words;
    }
  }
  return cuts;
}

// run(word number, row, column, words) for runs of words in one row: row scale, scales of their columns.
template <typename Run>
void GradientScales::for_each_run(std::size_t begin, std::size_t words, const Run& run) const {
  const std::size_t end = begin + words;
  auto cut = std::upper_bound(cuts_.begin(), cuts_.end(), begin,
                              [](std::size_t at, const Cut& c) { return at < c.begin; });
  if (cut != cuts_.begin()) --cut;
  while (begin < end) {
    if (begin >= cut->begin + cut->words) {
      ++cut;
      continue;
    }
    const std::uint64_t place = cut->phase + (begin - cut->begin);
    const std::uint64_t column = place % cut->cols;
    std::uint64_t n =
        std::min<std::uint64_t>({end, cut->begin + cut->words, begin + cut->cols - column}) - begin;
    const std::int16_t* columns = kNoColumns;
    if (cut->column.empty()) {
      n = std::min<std::uint64_t>(n, kRun);
    } else {
      columns = &cut->column[static_cast<std::size_t>(column)];
    }
    const int row = cut->row.empty() ? 0 : cut->row[static_cast<std::size_t>(place / cut->cols)];
    run(begin, static_cast<std::int16_t>(cut->mean + row), columns, static_cast<std::size_t>(n));
    begin += static_cast<std::size_t>(n);
  }
}

void GradientScales::measure(Cut& cut, std::span<const std::uint16_t> words) {
  const std::uint64_t rows = cut.rows();
  // The words of row k that this cut has, and the column of the first.
  const auto first = [&](std::uint64_t k) { return k == 0 ? cut.phase : 0; };
  const auto row_of = [&](std::uint64_t k) {
    const std::uint64_t from = k * cut.cols + first(k) - cut.phase;
    return words.subspan(cut.begin + from, std::min(cut.cols - first(k), cut.words - from));
  };

  // Rows, by words spread evenly over them.
  const std::uint64_t step = stride_of(cut.cols);
  std::vector<int> row_mean(static_cast<std::size_t>(rows), 0);
  std::int64_t sum_all = 0, count_all = 0;
  for (std::uint64_t k = 0; k < rows; ++k) {
    std::int64_t sum = 0, count = 0;
    const auto row = row_of(k);
    // The same columns of every row, so that what they add to it is the same.
    for (std::uint64_t j = (step - first(k) % step) % step; j < row.size(); j += step) {
      const int e = exponent_of(row[j]);
      sum += e;
      count += e != 0;
    }
    row_mean[static_cast<std::size_t>(k)] = mean_of(sum * kQuarters, count);
    sum_all += sum;
    count_all += count;
  }
  cut.mean = static_cast<std::int16_t>(mean_of(sum_all * kQuarters, count_all));
  if (cut.mean == 0) return;
  if (cut.scales_rows()) {
    for (const int mean : row_mean) cut.row.push_back(mean == 0 ? std::int16_t{0} : as_byte(mean - cut.mean));
  }
  if (!cut.scales_columns()) return;

  // Columns, by rows spread evenly, against what their rows predict.
  std::vector<std::int32_t> sum(cut.cols, 0), count(cut.cols, 0);
  for (std::uint64_t k = 0; k < rows; k += stride_of(rows)) {
    const auto row = row_of(k);
    std::int32_t* const sums = sum.data() + first(k);
    std::int32_t* const counts = count.data() + first(k);
    const int scale = cut.mean + (cut.row.empty() ? 0 : cut.row[static_cast<std::size_t>(k)]);
    for (std::size_t j = 0; j < row.size(); ++j) {
      const int e = exponent_of(row[j]);
      sums[j] += e == 0 ? 0 : e * kQuarters - scale;
      counts[j] += e != 0;
    }
  }
  for (std::size_t j = 0; j < sum.size(); ++j) cut.column.push_back(as_byte(mean_of(sum[j], count[j])));
}

GradientScales GradientScales::measure(std::span<const GradientPiece> pieces,
                                       std::span<const std::uint16_t> words) {
  GradientScales scales;
  scales.pieces_.assign(pieces.begin(), pieces.end());
  scales.cuts_ = cuts_of(pieces);
  for (Cut& cut : scales.cuts_) measure(cut, words);
  return scales;
}

std::size_t GradientScales::bytes_bound(std::span<const GradientPiece> pieces) {
  std::size_t bytes = sizeof(std::uint32_t) + pieces.size() * kPieceBytes;
  for (const Cut& cut : cuts_of(pieces)) {
    bytes +=
        sizeof(std::uint16_t) + (cut.scales_rows() ? cut.rows() : 0) + (cut.scales_columns() ? cut.cols : 0);
  }
  return bytes;
}

void GradientScales::append_to(std::vector<std::uint8_t>& out) const {
  put(out, static_cast<std::uint32_t>(pieces_.size()));
  for (const GradientPiece& piece : pieces_) {
    put(out, piece.words);
    put(out, piece.rows);
    put(out, piece.cols);
    put(out, piece.offset);
  }
  for (const Cut& cut : cuts_) {
    put(out, static_cast<std::uint16_t>(cut.mean));
    for (const std::int16_t scale : cut.row) put(out, static_cast<std::int8_t>(scale));
    for (const std::int16_t scale : cut.column) put(out, static_cast<std::int8_t>(scale));
  }
}

GradientScales GradientScales::read(std::span<const std::uint8_t>& bytes, std::size_t words) {
  GradientScales scales;
  const auto num_pieces = take<std::uint32_t>(bytes);
  check_bytes(num_pieces <= bytes.size() / kPieceBytes, "gradient scales: got {} pieces in {} bytes",
              num_pieces, bytes.size());
  std::uint64_t left = words;
  for (std::uint32_t i = 0; i < num_pieces; ++i) {
    GradientPiece piece;
    piece.words = take<std::uint64_t>(bytes);
    piece.rows = take<std::uint32_t>(bytes);
    piece.cols = take<std::uint32_t>(bytes);
    piece.offset = take<std::uint64_t>(bytes);
    check_bytes(piece.words <= left, "gradient scales: piece {} has {} words, expected at most {}", i,
                piece.words, left);
    check_bytes(piece.rows > 0 && piece.cols > 0, "gradient scales: piece {} is of matrices [{}, {}]", i,
                piece.rows, piece.cols);
    left -= piece.words;
    scales.pieces_.push_back(piece);
  }
  check_bytes(left == 0, "gradient scales: the pieces have {} words, expected {}", words - left, words);
  scales.cuts_ = cuts_of(scales.pieces_);
  for (Cut& cut : scales.cuts_) {
    const auto mean = take<std::uint16_t>(bytes);
    check_bytes(mean <= kMaxMean, "gradient scales: got a mean of {} quarters, expected at most {}", mean,
                kMaxMean);
    cut.mean = static_cast<std::int16_t>(mean);
    if (mean == 0) continue;
    if (cut.scales_rows()) cut.row = take_scales(bytes, cut.rows());
    if (cut.scales_columns()) cut.column = take_scales(bytes, cut.cols);
  }
  return scales;
}

void GradientScales::shift(std::size_t begin, std::span<const std::uint16_t> from, std::uint16_t* to) const {
  for_each_run(begin, from.size(),
               [&](std::size_t at, std::int16_t row, const std::int16_t* columns, std::size_t n) {
                 shift_exponents(from.subspan(at - begin, n), row, columns, to + (at - begin));
               });
}

void GradientScales::unshift(std::size_t begin, std::span<const std::uint16_t> from,
                             std::uint16_t* to) const {
  for_each_run(begin, from.size(),
               [&](std::size_t at, std::int16_t row, const std::int16_t* columns, std::size_t n) {
                 unshift_exponents(from.subspan(at - begin, n), row, columns, to + (at - begin));
               });
}

}  // namespace moesaic::codec
