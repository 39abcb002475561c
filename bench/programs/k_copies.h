// k_copies.h: the exchange as most systems do it: each token k times, by MPI_Alltoallv, and k rows back.
#pragma once

#include <mpi.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "bench/exchange_cases.h"
#include "moesaic/comm/ordered_sum.h"

namespace moesaic::bench {

// Collective over MPI_COMM_WORLD.
class KCopies {
 public:
  KCopies(const ExchangeCase& c, int rank, int ranks)
      : case_(c),
        rank_(rank),
        ranks_(ranks),
        plan_(routing_of(c, rank)),
        x_(exchanged_rows(c, rank)),
        y_(x_) {}

  void round() {
    // Rows by expert; with experts placed in order, that is by rank.
    std::vector<int> of_expert(kExchangedExperts + 1, 0), counts(static_cast<std::size_t>(ranks_), 0);
    for (const std::int32_t e : plan_.expert_ids) {
      ++of_expert[static_cast<std::size_t>(e) + 1];
      ++counts[static_cast<std::size_t>(owner(e))];
    }
    std::partial_sum(of_expert.begin(), of_expert.end(), of_expert.begin());
    std::vector<int> theirs(counts.size());
    MPI_Alltoall(counts.data(), 1, MPI_INT, theirs.data(), 1, MPI_INT, MPI_COMM_WORLD);
    place_.resize(plan_.expert_ids.size());
    sent_.resize(plan_.expert_ids.size() * kRowBytes);
    for (std::size_t i = 0; i < plan_.expert_ids.size(); ++i) {
      place_[i] = static_cast<std::size_t>(of_expert[static_cast<std::size_t>(plan_.expert_ids[i])]++);
      const std::size_t token = i / static_cast<std::size_t>(case_.top_k);
      std::memcpy(&sent_[place_[i] * kRowBytes], &x_[token * kExchangedWidth], kRowBytes);
    }
    const auto [out, out_begin] = in_bytes(counts);
    const auto [in, in_begin] = in_bytes(theirs);
    received_.resize(static_cast<std::size_t>(std::accumulate(in.begin(), in.end(), std::int64_t{0})));
    MPI_Alltoallv(sent_.data(), out.data(), out_begin.data(), MPI_BYTE, received_.data(), in.data(),
                  in_begin.data(), MPI_BYTE, MPI_COMM_WORLD);
    MPI_Alltoallv(received_.data(), in.data(), in_begin.data(), MPI_BYTE, sent_.data(), out.data(),
                  out_begin.data(), MPI_BYTE, MPI_COMM_WORLD);
    std::vector<std::vector<const std::byte*>> parts(1);
    for (std::int64_t t = 0; t < case_.tokens; ++t) {
      parts[0].clear();
      for (int k = 0; k < case_.top_k; ++k) {
        parts[0].push_back(&sent_[place_[static_cast<std::size_t>(t * case_.top_k + k)] * kRowBytes]);
      }
      ordered_sum(DType::kBF16, parts, kExchangedWidth, DType::kBF16,
                  reinterpret_cast<std::byte*>(&y_[static_cast<std::size_t>(t * kExchangedWidth)]));
    }
  }

  std::int64_t wrong() const {
    return wrong_elements(y_, rank_, std::vector<int>(static_cast<std::size_t>(case_.tokens), case_.top_k));
  }

 private:
  static constexpr std::size_t kRowBytes = kExchangedWidth * sizeof(BF16);

  int owner(std::int32_t expert) const { return expert / (kExchangedExperts / ranks_); }
  static std::pair<std::vector<int>, std::vector<int>> in_bytes(const std::vector<int>& rows) {
    std::vector<int> bytes, begin{0};
    for (const int count : rows) {
      bytes.push_back(count * static_cast<int>(kRowBytes));
      begin.push_back(begin.back() + bytes.back());
    }
    return {bytes, begin};
  }

  ExchangeCase case_;
  int rank_, ranks_;
  RoutingPlan plan_;
  std::vector<BF16> x_, y_;
  std::vector<std::size_t> place_;
  std::vector<std::byte> sent_, received_;
};

}  // namespace moesaic::bench
