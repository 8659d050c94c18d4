# cmake --install: headers, the library in both forms, weftConfig.cmake, weft.pc, pages. All in one component, weft.
#
# find_package(weft) gives weft::weft, the shared library, which brings all it needs, and weft::weft_sim, the same with
# the simulation. With the component static there is
# weft::weft_static as well, and then the libraries that it rests on are looked for. With the component rpc a weft that
# was built with WEFT_RPC_ONLY is enough.
include(CMakePackageConfigHelpers)
set(weft_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
set(weft_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH weft_pc_to_prefix /${weft_pc_dir} /)
string(REGEX REPLACE "/$" "" weft_pc_to_prefix ${weft_pc_to_prefix})

if(WEFT_RPC_ONLY) # headers of what it leaves out
  set(weft_left_out REGEX
    "/(context|data_parallel|dist_optim|hooks|nn|operator|ops|optim|optimizer_type|remote_module|tape|weft)\\.h$")
  set(weft_exclude ${weft_left_out} EXCLUDE)
endif()
install(DIRECTORY include/weft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT weft FILES_MATCHING PATTERN "*.h"
  PATTERN "*.hpp" ${weft_exclude})
configure_package_config_file(cmake/weftConfig.cmake.in weftConfig.cmake INSTALL_DESTINATION ${weft_cmake_dir})
write_basic_package_version_file(weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weftConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/weftConfigVersion.cmake
  DESTINATION ${weft_cmake_dir} COMPONENT weft)

# The pages, with the folders docs/ and examples/ so that links to them work.
install(FILES README.md LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT weft)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT weft)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT weft
  FILES_MATCHING PATTERN "*.[ch]" PATTERN "*.cpp" PATTERN "*.py" PATTERN "*.f90" PATTERN Makefile PATTERN build EXCLUDE PATTERN __pycache__ EXCLUDE)

install(TARGETS weft weft_sim EXPORT weft-shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT weft)
install(TARGETS weft_static weft_deps EXPORT weft-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT weft)
foreach(form shared static)
  install(EXPORT weft-${form} NAMESPACE weft:: DESTINATION ${weft_cmake_dir} COMPONENT weft)
endforeach()
if(NOT WEFT_RPC_ONLY)
  install(FILES cmake/FindOneDNN.cmake DESTINATION ${weft_cmake_dir} COMPONENT weft)
endif()

# What the static library needs stands in Libs.private and not in Requires.private: the latter would draw in the private
# libraries of libfabric's own .pc (verbs, efa, psm2), whose development files weft does not need.
list(REMOVE_DUPLICATES weft_private_libs)
list(JOIN weft_private_libs " " weft_private_libs)
set(weft_pc_name weft)
configure_file(cmake/weft.pc.in weft.pc @ONLY)
set(weft_pc_name weft_sim)
set(weft_pc_more "; with simulated jobs")
set(weft_private_libs) # it has no static form
configure_file(cmake/weft.pc.in weft_sim.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weft.pc ${CMAKE_CURRENT_BINARY_DIR}/weft_sim.pc DESTINATION ${weft_pc_dir}
  COMPONENT weft)

include(WeftMan)

# After all files: the environment-module file, and the pages' links.
configure_file(cmake/Installed.cmake.in Installed.cmake @ONLY)
install(SCRIPT ${CMAKE_CURRENT_BINARY_DIR}/Installed.cmake COMPONENT weft)

if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall VERBATIM
    COMMAND ${CMAKE_COMMAND} -D BUILD=${CMAKE_BINARY_DIR} -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/Uninstall.cmake)
endif()
