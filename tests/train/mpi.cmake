# A step on processes.
add_executable(train_mpi_norm train/mpi_norm.cc)
target_link_libraries(train_mpi_norm PRIVATE moesaic_train GTest::gtest)
target_include_directories(train_mpi_norm PRIVATE ${CMAKE_SOURCE_DIR})
moesaic_use_torch(train_mpi_norm)
foreach(ranks 2 4)
  add_test(NAME train.mpi_${ranks}_ranks_clip_by_one_norm
           COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} --oversubscribe --bind-to none $<TARGET_FILE:train_mpi_norm>)
  set_tests_properties(train.mpi_${ranks}_ranks_clip_by_one_norm PROPERTIES TIMEOUT 300 LABELS train
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endforeach()
