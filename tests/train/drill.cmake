# A training run with a fault in it, and the tests that start it. It ends its jobs as the command line does: launch.cc.
add_executable(fault_drill train/fault_drill.cc ${CMAKE_SOURCE_DIR}/src/moesaic/cli/launch.cc)
target_link_libraries(fault_drill PRIVATE moesaic_train)
target_include_directories(fault_drill PRIVATE ${CMAKE_SOURCE_DIR})
moesaic_see_torch(fault_drill)
target_compile_options(fault_drill PRIVATE -O1)
moesaic_pytest(launch/test_fault_drills.py)
moesaic_pytest(launch/test_bad_files.py)
moesaic_pytest(launch/test_wrong_placements.py)
# Faults in reading, preloaded into moesaic itself.
add_library(read_fault SHARED launch/read_fault.cc)
target_link_libraries(read_fault PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(read_fault PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
moesaic_pytest(launch/test_faults_while_loading.py)
