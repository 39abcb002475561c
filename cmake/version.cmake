# cmake -DSOURCE=... -DOUT=... -P version.cmake: writes the source file that says which commit was built.
# Run by every build; the file changes, and is compiled, only when the answer does.
execute_process(COMMAND git describe --always --dirty --tags WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  set(version "unknown")  # a source archive, or no git here
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT [[#include "moesaic/cli/environment.h"

namespace moesaic::cli {
const char* const kGitVersion = "@version@";
}
]] @ONLY)
