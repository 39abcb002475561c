# A room: one folder of src/moesaic = one namespace = one library moesaic_<name>.
#
#   moesaic_room(NAME [TORCH] USES room... [LIBRARIES target...])
#
# Sources are all *.cc beside the CMakeLists.txt and one folder below. USES names rooms above it in the design's table
# (tests/structure/layering.py checks the includes); LIBRARIES are third-party targets. A room without TORCH
# cannot see torch's headers at all.
function(moesaic_room name)
  cmake_parse_arguments(ARG "TORCH" "" "USES;LIBRARIES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc ${CMAKE_CURRENT_SOURCE_DIR}/*/*.cc)
  if(NOT sources)
    message(FATAL_ERROR "room ${name} has no sources")
  endif()
  add_library(moesaic_${name} STATIC ${sources})
  target_include_directories(moesaic_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  list(TRANSFORM ARG_USES PREPEND moesaic_)
  target_link_libraries(moesaic_${name} PUBLIC ${ARG_USES} ${ARG_LIBRARIES})
  if(ARG_TORCH)
    moesaic_use_torch(moesaic_${name})
  endif()
endfunction()

# Lets a target include headers that name at::Tensor (<ATen/core/Tensor.h>).
function(moesaic_see_torch target)
  target_include_directories(${target} SYSTEM PRIVATE ${TORCH_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE ${TORCH_LIBRARIES})
  # torch brings the headers of another fmt, without its library. Versions have namespaces of their own.
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY)
endfunction()

# Lets a target call torch's operators. <ATen/ATen.h> takes 20 s and 1 GB per file, so it is precompiled, once:
# nn's is reused by every other target (which must then agree on -fPIC, executables too).
function(moesaic_use_torch target)
  moesaic_see_torch(${target})
  if(target STREQUAL "moesaic_nn")
    target_precompile_headers(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src/moesaic/nn/torch_pch.h)
  else()
    target_precompile_headers(${target} REUSE_FROM moesaic_nn)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()
