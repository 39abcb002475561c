# Compiler options every target shares.
set(MOESAIC_SANITIZE "" CACHE STRING "Value for -fsanitize= (see CMakePresets.json)")

# Contract 1 of the design: a*b+c must not be fused behind our back, or equal plans stop giving equal bits.
add_compile_options(-Wall -Wextra -Werror -ffp-contract=off)
if(MOESAIC_SANITIZE)
  add_compile_options(-fsanitize=${MOESAIC_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MOESAIC_SANITIZE})
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # pch_defines,time_macros: what ccache's manual asks for with precompiled headers. With the base directory
  # two checkouts share what they compile.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE_PROGRAM})
endif()
