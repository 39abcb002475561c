# The GPU twins (*.cu) and the program that checks them on a GPU, for sm_90. Nothing else needs them: they are built by the
# target cuda_check alone (make cuda-check), with nvcc alone, and link no torch.
find_program(MOESAIC_NVCC nvcc PATHS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin DOC "CUDA's compiler, 13.0")
if(MOESAIC_NVCC)
  # nvcc itself knows best where its libraries and headers are (it may be a script, or a link from another folder).
  execute_process(COMMAND ${MOESAIC_NVCC} --dryrun -x cu -c /dev/null -o /dev/null ERROR_VARIABLE dryrun OUTPUT_QUIET)
  string(REGEX MATCH "TOP=([^\n]*)" ignored "${dryrun}")
  get_filename_component(cuda_root "${CMAKE_MATCH_1}" REALPATH)
  find_path(MOESAIC_CUDA_INCLUDE cuda_runtime_api.h HINTS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include)
  find_library(MOESAIC_CUDART libcudart_static.a HINTS ${cuda_root}/lib64 ${cuda_root}/targets/x86_64-linux/lib)
endif()
if(NOT MOESAIC_NVCC OR NOT MOESAIC_CUDA_INCLUDE OR NOT MOESAIC_CUDART)
  add_custom_target(cuda_check
    COMMAND ${CMAKE_COMMAND} -E echo "cuda-check: got nvcc ${MOESAIC_NVCC}, cudart ${MOESAIC_CUDART}. Get CUDA 13.0: NVIDIA's Debian repository has it as"
    COMMAND ${CMAKE_COMMAND} -E echo "  cuda-nvcc-13-0 cuda-cudart-dev-13-0; then: cmake --preset release -DMOESAIC_NVCC=/usr/local/cuda-13.0/bin/nvcc"
    COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
  set(MOESAIC_CUDA OFF)
  return()
endif()
set(MOESAIC_CUDA ON)

# -fmad=false: what -ffp-contract=off is for the CPU.
set(nvcc_flags -std=c++20 -O3 -arch=sm_90 -fmad=false --expt-relaxed-constexpr -Werror all-warnings
    -Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off,-fPIC -I${CMAKE_SOURCE_DIR}/src)
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/moesaic/*.cu)
foreach(source ${cuda_sources})
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR}/src/moesaic ${source})
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  get_filename_component(folder ${object} DIRECTORY)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND ${MOESAIC_NVCC} ${nvcc_flags} -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d COMMENT "Compiling ${name} for sm_90" VERBATIM)
  list(APPEND cuda_objects ${object})
endforeach()
set_source_files_properties(${cuda_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)

file(GLOB gpu_check_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/gpu_check/*.cc)
add_executable(gpu_check EXCLUDE_FROM_ALL ${gpu_check_sources} ${cuda_objects})
target_include_directories(gpu_check PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(gpu_check SYSTEM PRIVATE ${MOESAIC_CUDA_INCLUDE})
target_link_libraries(gpu_check PRIVATE moesaic_kernels moesaic_codec ${MOESAIC_CUDART}
                      Threads::Threads ${CMAKE_DL_LIBS} rt)
target_link_options(gpu_check PRIVATE -static-libstdc++ -static-libgcc)
# A machine with a GPU need not have what this one has: the few libraries lie beside the program.
set_target_properties(gpu_check PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/gpu_check INSTALL_RPATH "$ORIGIN"
                      BUILD_WITH_INSTALL_RPATH ON)
add_custom_command(TARGET gpu_check POST_BUILD VERBATIM COMMAND sh -c
  "rm -f \"$2\"/lib*.so* && ldd \"$1\" | awk '/lib(fmt|isal|hwy|xxhash)/ {print $3}' | xargs -r cp -L -t \"$2\"" sh $<TARGET_FILE:gpu_check> $<TARGET_FILE_DIR:gpu_check>)
add_custom_target(cuda_check DEPENDS gpu_check)
