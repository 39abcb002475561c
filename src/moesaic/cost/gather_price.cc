#include "moesaic/cost/gather_price.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

constexpr double kWordBytes = 2;
// Of everyone to everyone: a header before, a verdict after.
constexpr double kHeaderBytes = 56, kVerdictBytes = 8;

std::int64_t words_at(const GatherShape& shape, int rank) {
  return shape.words_of_rank[static_cast<std::size_t>(rank)];
}

void add(Prediction& sum, const Prediction& gather) {
  sum.header += gather.header;
  sum.encode += gather.encode;
  sum.between += gather.between;
  sum.inside += gather.inside;
  sum.decode += gather.decode;
  sum.total += gather.total;
}

// What everyone tells everyone in so many rounds, those bytes in all.
double small_rounds(const Calibration& calibration, const GatherLoad& load, const GatherShape& shape,
                    int rounds, double bytes) {
  const double received = bytes * static_cast<double>(shape.topology.world_size() - 1);
  return calibration.between.seconds(rounds * load.messages_between, received) +
         calibration.inside.seconds(rounds * load.messages_inside, received);
}

void overlap(Prediction& gather, int slices) {
  const double sum = gather.encode + gather.between + gather.inside + gather.decode;
  const double longest = std::max({gather.encode, gather.between, gather.inside, gather.decode});
  gather.total = gather.header + longest + (sum - longest) / slices;
}

Prediction raw_gather(const Calibration& calibration, const GatherLoad& load) {
  Prediction gather;
  gather.between =
      calibration.between.seconds(load.messages_between, kWordBytes * static_cast<double>(load.through_card));
  gather.inside =
      calibration.inside.seconds(load.messages_inside, kWordBytes * static_cast<double>(load.from_node));
  overlap(gather, 1);
  return gather;
}

Prediction coded_gather(const Calibration& calibration, const GatherLoad& load, const GatherShape& shape,
                        codec::Method method, double bits_per_word) {
  const CodecRates& rates = calibration.rates_of(method);
  const double coded_bytes = bits_per_word / 8;  // of a word
  const bool by_node = shape.mode == ReferenceMode::kNode;
  Prediction gather;
  gather.header = small_rounds(calibration, load, shape, 2, kHeaderBytes + kVerdictBytes);
  gather.encode = kWordBytes * static_cast<double>(load.own) / rates.encode.together_bytes_per_s;
  gather.between = calibration.between.seconds(load.messages_between * shape.slices,
                                               coded_bytes * static_cast<double>(load.through_card));
  gather.inside =
      calibration.inside.seconds(load.messages_inside * shape.slices,
                                 (by_node ? kWordBytes : coded_bytes) * static_cast<double>(load.from_node));
  gather.decode = kWordBytes * static_cast<double>(by_node ? load.carried : load.foreign) /
                  rates.decode.together_bytes_per_s;
  overlap(gather, shape.slices);
  return gather;
}

// Of a version that all ends hold as words: they are copied, and the verdict says whether they still are what
// was sent.
Prediction kept_gather(const Calibration& calibration, const GatherLoad& load, const GatherShape& shape) {
  Prediction gather;
  gather.header = small_rounds(calibration, load, shape, 1, kVerdictBytes);
  const bool by_node = shape.mode == ReferenceMode::kNode;
  if (by_node) {
    gather.inside =
        calibration.inside.seconds(load.messages_inside, kWordBytes * static_cast<double>(load.from_node));
  }
  // What comes out of the own reference.
  const std::int64_t copied = by_node ? load.carried : load.all;
  gather.decode = kWordBytes * static_cast<double>(copied) / calibration.copy.together_bytes_per_s;
  overlap(gather, 1);
  return gather;
}

}  // namespace

GatherLoad load_of(const GatherShape& shape) {
  const Topology& topology = shape.topology;
  require(std::ssize(shape.words_of_rank) == topology.world_size(),
          "gather shape: got {} parts, expected one for each of {} ranks", shape.words_of_rank.size(),
          topology.world_size());
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    require(words_at(shape, rank) >= 0, "gather shape: the part of rank {} has {} words", rank,
            words_at(shape, rank));
  }
  require(shape.slices >= 1, "gather shape: got {} slices, expected at least 1", shape.slices);
  require(shape.regathers >= 0, "gather shape: got {} regathers, expected at least 0", shape.regathers);

  GatherLoad load;
  load.all = std::accumulate(shape.words_of_rank.begin(), shape.words_of_rank.end(), std::int64_t{0});
  const int others = topology.num_nodes() - 1;
  std::vector<std::int64_t> carried(shape.words_of_rank.size(), 0);
  std::vector<int> carries(shape.words_of_rank.size(), 0);  // parts of other nodes
  for (int node = 0; node < topology.num_nodes(); ++node) {
    std::int64_t owned = 0;
    for (const int rank : topology.ranks_of(node)) owned += words_at(shape, rank);
    // No node takes in more than the one that owns most sends.
    load.through_card = std::max(load.through_card, owned * others);
    for (int owner = 0; owner < topology.world_size(); ++owner) {
      if (topology.node_of(owner) == node) continue;
      const auto carrier = static_cast<std::size_t>(topology.counterpart(owner, node));
      carried[carrier] += words_at(shape, owner);
      ++carries[carrier];
    }
  }
  load.messages_between = others;
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    const std::int64_t own = words_at(shape, rank), mine = carried[static_cast<std::size_t>(rank)];
    const auto peers = static_cast<int>(topology.ranks_of(topology.node_of(rank)).size()) - 1;
    load.own = std::max(load.own, own);
    load.carried = std::max(load.carried, mine);
    load.foreign = std::max(load.foreign, load.all - own);
    load.from_node = std::max(load.from_node, load.all - own - mine);
    load.messages_inside =
        std::max(load.messages_inside, peers * (1 + carries[static_cast<std::size_t>(rank)]));
  }
  return load;
}

Prediction predict(const Calibration& calibration, const GatherShape& shape, codec::Method method,
                   double bits_per_word) {
  require(std::isfinite(bits_per_word) && bits_per_word > 0,
          "predict: got {} bits a word, expected a finite number above 0", bits_per_word);
  const GatherLoad load = load_of(shape);
  Prediction step;
  if (shape.topology.world_size() == 1) return step;  // nothing is gathered
  const bool raw = method == codec::Method::kRaw;
  const bool kept = codec::needs(method) >= codec::Keeps::kWords;
  const Prediction first =
      raw ? raw_gather(calibration, load) : coded_gather(calibration, load, shape, method, bits_per_word);
  add(step, first);
  for (int again = 0; again < shape.regathers; ++again) {
    add(step, kept ? kept_gather(calibration, load, shape) : first);
  }
  return step;
}

}  // namespace moesaic
