#include "moesaic/comm/collectives.h"
#include "tests/comm/worlds.h"
namespace moesaic {
namespace {
TEST(Smoke, Runs) {
  testing::for_each_world([](Communicator& w) {
    for (int i = 0; i < 50; ++i) {
      barrier(w);
      std::vector<std::int64_t> v(5, w.rank() + 1);
      all_reduce(w, std::span<std::int64_t>(v));
      if (v[0] != w.size() * (w.size() + 1) / 2) throw std::runtime_error("bad sum");
      std::vector<float> f(5, 1.0f);
      all_reduce(w, std::span<float>(f));
      if (f[4] != float(w.size())) throw std::runtime_error("bad sum");
    }
  });
}
}  // namespace
}  // namespace moesaic
