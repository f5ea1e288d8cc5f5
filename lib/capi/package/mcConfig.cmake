# find_package(mc): the target mc::mc.
include("${CMAKE_CURRENT_LIST_DIR}/mcTargets.cmake")
