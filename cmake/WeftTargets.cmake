# weft_sources(FILES...)            adds this folder's files to the library
# weft_test(NAME SOURCES... [TIMEOUT s] [LABELS l...])   a cmocka test program `NAME`, run by CTest (exit 77: skipped)
# weft_program(NAME SOURCES...)     a program on the public headers, in bin/
#
# weft_objects holds every object file once; the shared, the static library and the tests are made of it. Tests link the
# static form, which keeps all symbols, so that they may reach into one folder of src/.
add_library(weft_objects OBJECT)
target_include_directories(weft_objects PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${PROJECT_SOURCE_DIR}/src
  ${PROJECT_SOURCE_DIR}/providers)
target_link_libraries(weft_objects PUBLIC weft_deps PRIVATE weft_flags)

add_library(weft SHARED $<TARGET_OBJECTS:weft_objects>)
target_include_directories(weft PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(weft PRIVATE weft_deps)
set_target_properties(weft PROPERTIES SOVERSION 0 VERSION ${PROJECT_VERSION} LINKER_LANGUAGE C)
add_library(weft_static STATIC $<TARGET_OBJECTS:weft_objects>)
target_include_directories(weft_static PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(weft_static PUBLIC weft_deps)
set_target_properties(weft_static PROPERTIES OUTPUT_NAME weft LINKER_LANGUAGE C)

function(weft_sources)
  foreach(file ${ARGN})
    target_sources(weft_objects PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
endfunction()

function(weft_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE weft weft_flags Threads::Threads m)
endfunction()

function(weft_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "LABELS;ARGS" ${ARGN})
  add_executable(${name} ${T_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/providers
    ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE weft_static weft_flags cmocka)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 60)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77 LABELS "${T_LABELS}")
endfunction()
