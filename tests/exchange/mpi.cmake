# The checks that exchange_test runs on threads, on processes.
add_executable(exchange_mpi_test exchange/mpi_matrix.cc)
target_link_libraries(exchange_mpi_test PRIVATE moesaic_exchange GTest::gtest)
target_include_directories(exchange_mpi_test PRIVATE ${CMAKE_SOURCE_DIR})
foreach(ranks 1 2 3 4 7)
  add_test(NAME exchange.mpi_${ranks}_ranks
           COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} --oversubscribe --bind-to none $<TARGET_FILE:exchange_mpi_test>)
  set_tests_properties(exchange.mpi_${ranks}_ranks PROPERTIES TIMEOUT 300 LABELS exchange
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endforeach()
