# cmake --install: headers, both libraries in both forms, weftConfig.cmake, weft.pc and weft_rpc.pc, pages. The
# component rpc is what calls and tensors need: cmake --install BUILD --component rpc. The component weft is the rest.
#
# find_package(weft) gives weft::weft, the shared library, which brings all it needs; find_package(weft COMPONENTS rpc)
# gives weft::weft_rpc alone. With the component static there is weft::weft_static, or weft::weft_rpc_static, as well,
# and then the libraries that they rest on are looked for.
include(CMakePackageConfigHelpers)
set(weft_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
set(weft_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH weft_pc_to_prefix /${weft_pc_dir} /)
string(REGEX REPLACE "/$" "" weft_pc_to_prefix ${weft_pc_to_prefix})

# Headers of libweft, which libweft_rpc alone does not have.
set(weft_only_headers
  "/(context|data_parallel|dist_optim|hooks|nn|operator|ops|optim|optimizer_type|remote_module|tape|weft)\\.h$")
install(DIRECTORY include/weft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT rpc FILES_MATCHING PATTERN "*.h"
  REGEX ${weft_only_headers} EXCLUDE)
configure_package_config_file(cmake/weftConfig.cmake.in weftConfig.cmake INSTALL_DESTINATION ${weft_cmake_dir})
write_basic_package_version_file(weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weftConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/weftConfigVersion.cmake
  DESTINATION ${weft_cmake_dir} COMPONENT rpc)

# The pages, with the folders docs/ and examples/ so that links to them work.
install(FILES README.md LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT rpc)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT rpc)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT rpc
  FILES_MATCHING PATTERN "*.[ch]" PATTERN "*.cpp" PATTERN "*.py" PATTERN Makefile PATTERN build EXCLUDE PATTERN __pycache__ EXCLUDE)

# A .pc file. What the static library needs stands in Libs.private and not in Requires.private: the latter would draw in
# the private libraries of libfabric's own .pc (verbs, efa, psm2), whose development files weft does not need.
function(weft_install part component)
  install(TARGETS ${part} EXPORT ${part}-shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}
    NAMELINK_COMPONENT ${component})
  install(TARGETS ${part}_static ${part}_deps EXPORT ${part}-static
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component})
  foreach(form shared static)
    install(EXPORT ${part}-${form} NAMESPACE weft:: DESTINATION ${weft_cmake_dir} COMPONENT ${component})
  endforeach()

  set(private_libs ${${part}_private_libs})
  list(REMOVE_DUPLICATES private_libs)
  list(JOIN private_libs " " weft_private_libs)
  configure_file(cmake/${part}.pc.in ${part}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${part}.pc DESTINATION ${weft_pc_dir} COMPONENT ${component})
endfunction()

weft_install(weft_rpc rpc)
if("weft" IN_LIST weft_parts)
  weft_install(weft weft)
  install(DIRECTORY include/weft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT weft
    FILES_MATCHING REGEX ${weft_only_headers})
  install(FILES cmake/FindOneDNN.cmake DESTINATION ${weft_cmake_dir} COMPONENT weft)
endif()

include(WeftMan)

# After all files: the environment-module file, and the pages' links.
configure_file(cmake/Installed.cmake.in Installed.cmake @ONLY)
install(SCRIPT ${CMAKE_CURRENT_BINARY_DIR}/Installed.cmake COMPONENT rpc)

if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall VERBATIM
    COMMAND ${CMAKE_COMMAND} -D BUILD=${CMAKE_BINARY_DIR} -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/Uninstall.cmake)
endif()
