// mpi_environment.h: the environment that `moesaic` gives MPI, for jobs that stand for it. Not for a program
// that starts baselines: they would inherit it.
#pragma once

#include <cstdlib>

#include "moesaic/comm/mpi.h"

namespace moesaic::bench {

inline void prefer_mpi_environment() {
  for (const EnvironmentSetting& setting : mpi_environment()) {
    setenv(setting.name, setting.value, /*overwrite=*/0);
  }
}

}  // namespace moesaic::bench
