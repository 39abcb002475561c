#include "moesaic/cost/reduce_price.h"

#include <algorithm>
#include <cmath>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

constexpr double kWordBytes = 2;

}  // namespace

ReducePrediction predict_reduce(const Calibration& calibration, const ReduceShape& shape, bool coded,
                                double bits_per_word) {
  const Topology& topology = shape.topology;
  require(std::ssize(shape.words_of_rank) == topology.world_size(),
          "reduce shape: got {} parts, expected one for each of {} ranks", shape.words_of_rank.size(),
          topology.world_size());
  require(std::isfinite(bits_per_word) && bits_per_word >= 0,
          "predict_reduce: got {} bits a word, expected a finite number of at least 0", bits_per_word);
  const auto words_of = [&](int rank) {
    const std::int64_t words = shape.words_of_rank[static_cast<std::size_t>(rank)];
    require(words >= 0, "reduce shape: the part of rank {} has {} words", rank, words);
    return words;
  };

  const int other_nodes = topology.num_nodes() - 1;
  std::int64_t summed = 0, carried_most = 0, owned_most = 0, into_card = 0;
  int peers_most = 0;
  for (int node = 0; node < topology.num_nodes(); ++node) {
    const auto& ranks = topology.ranks_of(node);
    const auto peers = static_cast<int>(ranks.size()) - 1;
    std::int64_t owned_by_node = 0;
    for (const int rank : ranks) {
      std::int64_t carried = 0;
      for (const int owner : topology.stands_for(rank)) carried += words_of(owner);
      owned_by_node += words_of(rank);
      owned_most = std::max(owned_most, words_of(rank));
      carried_most = std::max(carried_most, carried);
      summed = std::max(summed, peers * (words_of(rank) + carried));
    }
    peers_most = std::max(peers_most, peers);
    into_card = std::max(into_card, owned_by_node * other_nodes);
  }

  ReducePrediction reduce;
  if (topology.world_size() == 1) return reduce;
  reduce.inside = calibration.inside.seconds(peers_most, kWordBytes * static_cast<double>(summed));
  if (other_nodes == 0) return reduce;
  reduce.between =
      calibration.between.seconds(other_nodes, bits_per_word / 8 * static_cast<double>(into_card));
  if (!coded) return reduce;
  const CodecRates& rates = calibration.gradients;
  reduce.encode = kWordBytes * static_cast<double>(carried_most) / rates.encode.together_bytes_per_s;
  reduce.decode =
      kWordBytes * static_cast<double>(owned_most * other_nodes) / rates.decode.together_bytes_per_s;
  return reduce;
}

}  // namespace moesaic
