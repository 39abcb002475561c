# What the project stands on; tools/setup.sh installs all of it.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(GTest REQUIRED)
find_package(hwy REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)

find_package(MPI REQUIRED COMPONENTS C)

# libtorch comes from the wheel in .venv; a room asks for it by saying TORCH (cmake/rooms.cmake).
set(MOESAIC_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python CACHE FILEPATH "Python whose torch wheel is linked")
execute_process(COMMAND ${MOESAIC_PYTHON} -c "import torch; print(torch.utils.cmake_prefix_path)"
                OUTPUT_VARIABLE MOESAIC_TORCH_PREFIX OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "no torch in ${MOESAIC_PYTHON}: run tools/setup.sh (make build does)")
endif()
find_package(Torch REQUIRED PATHS ${MOESAIC_TORCH_PREFIX} NO_DEFAULT_PATH)
