# The checks that comm_test runs on threads, on processes; and jobs that lose a rank.
target_sources(comm_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/comm/collective_checks.cc)

add_executable(comm_mpi_test comm/mpi_matrix.cc comm/collective_checks.cc)
add_executable(comm_mpi_drill comm/mpi_drill.cc)
foreach(program comm_mpi_test comm_mpi_drill)
  target_link_libraries(${program} PRIVATE moesaic_comm GTest::gtest)
  target_include_directories(${program} PRIVATE ${CMAKE_SOURCE_DIR})
endforeach()

# moesaic_mpi_test(NAME RANKS COMMAND...)
function(moesaic_mpi_test name ranks)
  add_test(NAME comm.${name} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} --oversubscribe --bind-to none ${ARGN})
  set_tests_properties(comm.${name} PROPERTIES TIMEOUT 300 LABELS comm
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endfunction()

foreach(ranks 1 2 3 4 7)
  moesaic_mpi_test(mpi_${ranks}_ranks ${ranks} $<TARGET_FILE:comm_mpi_test>)
endforeach()
moesaic_mpi_test(mpi_3_ranks_in_pieces 3 $<TARGET_FILE:comm_mpi_test> --piece-bytes 1000)
moesaic_pytest(comm/test_mpi_losses.py)
