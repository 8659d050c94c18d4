# make install: headers, both libraries, weftConfig.cmake, weft.pc.
#
# find_package(weft) gives weft::weft, the shared library, which brings all it needs. find_package(weft COMPONENTS static)
# adds weft::weft_static, and then the libraries that weft rests on are looked for.
include(CMakePackageConfigHelpers)
set(weft_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weft)

install(DIRECTORY include/weft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS weft EXPORT weft-shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS weft_static weft_deps EXPORT weft-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(form shared static)
  install(EXPORT weft-${form} NAMESPACE weft:: DESTINATION ${weft_cmake_dir})
endforeach()

configure_package_config_file(cmake/weftConfig.cmake.in weftConfig.cmake INSTALL_DESTINATION ${weft_cmake_dir})
write_basic_package_version_file(weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weftConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/weftConfigVersion.cmake
  cmake/FindOneDNN.cmake
  DESTINATION ${weft_cmake_dir})

# weft.pc. What the static library needs stands in Libs.private and not in Requires.private: the latter would draw in the
# private libraries of libfabric's own .pc (verbs, efa, psm2), whose development files weft does not need.
get_property(cuda_libraries GLOBAL PROPERTY weft_cuda_libraries)
list(APPEND WEFT_PRIVATE_LIBS ${cuda_libraries})
list(REMOVE_DUPLICATES WEFT_PRIVATE_LIBS)
list(JOIN WEFT_PRIVATE_LIBS " " weft_private_libs)
file(RELATIVE_PATH weft_pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" weft_pc_to_prefix ${weft_pc_to_prefix})
configure_file(cmake/weft.pc.in weft.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
