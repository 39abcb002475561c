// mpi_choices.h: the ways of Open MPI to do a collective over TCP that are worth trying: its algorithms, each
// with its default message sizes and with eager limits of 4 MiB.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace moesaic::bench {

struct MpiChoice {
  std::string name;                      // "ring, eager 4 MiB"
  std::vector<std::string> environment;  // for JobOptions
};

// collective: "allgatherv"; algorithms: names and Open MPI's numbers for them, 0 being its own choice.
inline std::vector<MpiChoice> mpi_choices(const std::string& collective,
                                          const std::vector<std::pair<std::string, int>>& algorithms) {
  std::vector<MpiChoice> choices;
  for (const auto& [name, number] : algorithms) {
    for (const bool eager : {false, true}) {
      MpiChoice& choice =
          choices.emplace_back(MpiChoice{name + (eager ? ", eager 4 MiB" : ", default messages"), {}});
      if (number > 0) {
        choice.environment = {"OMPI_MCA_coll_tuned_use_dynamic_rules=1",
                              fmt::format("OMPI_MCA_coll_tuned_{}_algorithm={}", collective, number)};
      }
      if (!eager) continue;
      for (const char* limit : {"eager_limit", "rndv_eager_limit", "max_send_size"}) {
        choice.environment.push_back(fmt::format("OMPI_MCA_btl_tcp_{}=4194304", limit));
      }
    }
  }
  return choices;
}

}  // namespace moesaic::bench
