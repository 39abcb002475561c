// commands.h: the subcommands of `moesaic`, one file each.
//
// add_X declares the options on the command line parser; the work runs in the subcommand's callback and
// throws moesaic::Error (main.cc turns that into a message and an exit status).
#pragma once

#include <CLI/CLI.hpp>

namespace moesaic::cli {

void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_config(CLI::App& app);
void add_report(CLI::App& app);
void add_codec(CLI::App& app);
void add_calibrate(CLI::App& app);

}  // namespace moesaic::cli
