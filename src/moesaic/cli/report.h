// report.h: the HTML report of a run, and its TensorBoard events. Both are written by
// python/moesaic/report.py.
#pragma once

#include <filesystem>

namespace moesaic::cli {

// Runs the Python that this was built with, or that of MOESAIC_PYTHON, and waits for it. `html` empty: no
// page; `tensorboard` empty: no events. IoError when it cannot be run or fails; what it has to say about that
// is on stderr by then.
void write_report(const std::filesystem::path& run_dir, const std::filesystem::path& html,
                  const std::filesystem::path& tensorboard);

}  // namespace moesaic::cli
