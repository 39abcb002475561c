# tools/cluster. It needs root and network namespaces; without them the test is skipped and says why.
add_executable(cluster_mpi_probe cluster/mpi_probe.cc)
target_link_libraries(cluster_mpi_probe PRIVATE MPI::MPI_C)
target_compile_definitions(cluster_mpi_probe PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)  # as in comm
moesaic_pytest(cluster/test_cluster.py)
set_tests_properties(cluster.test_cluster PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300)
moesaic_pytest(cluster/test_exchange.py)
set_tests_properties(cluster.test_exchange PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300)
moesaic_pytest(cluster/test_link_rate.py)
set_tests_properties(cluster.test_link_rate PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300)
