# A room: one folder of src/moesaic = one namespace = one library moesaic_<name>.
#
#   moesaic_room(NAME [TORCH] USES room... [LIBRARIES target...])
#
# Sources are all *.cc beside the CMakeLists.txt. USES names rooms above it in the design's table
# (tests/structure/layering.py checks the includes); LIBRARIES are third-party targets. A room without TORCH
# cannot see torch's headers at all.
function(moesaic_room name)
  cmake_parse_arguments(ARG "TORCH" "" "USES;LIBRARIES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
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

# Lets a target include torch, with its headers precompiled (20 s per file otherwise).
function(moesaic_use_torch target)
  target_include_directories(${target} SYSTEM PRIVATE ${TORCH_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE ${TORCH_LIBRARIES})
  target_precompile_headers(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src/moesaic/nn/torch_pch.h)

endfunction()
