# The manual pages, which tools/man-pages writes from the public headers, from the --help of the installed programs,
# from docs/environment.md and examples/: man/ of the build folder.
#
# A program needs no line here: each executable in bin/ of the build folder whose name begins with weft- has a page.
find_program(WEFT_PYTHON python3)
if(NOT WEFT_PYTHON)
  message(STATUS "There is no python3: manual pages are not built")
  return()
endif()

set(weft_man ${PROJECT_BINARY_DIR}/man)
set(weft_man_options --out ${weft_man} --version ${PROJECT_VERSION})
file(GLOB weft_man_headers ${PROJECT_SOURCE_DIR}/include/weft/*.h)
if(WEFT_RPC_ONLY)
  list(FILTER weft_man_headers EXCLUDE ${weft_left_out})
  list(TRANSFORM weft_man_headers REPLACE ".*/" "" OUTPUT_VARIABLE weft_man_names)
  list(JOIN weft_man_names "," weft_man_names)
  list(APPEND weft_man_options --headers ${weft_man_names})
endif()

get_property(weft_man_programs DIRECTORY ${PROJECT_SOURCE_DIR}/programs PROPERTY BUILDSYSTEM_TARGETS)
get_property(weft_man_folders DIRECTORY ${PROJECT_SOURCE_DIR}/programs PROPERTY SUBDIRECTORIES)
foreach(folder ${weft_man_folders})
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  list(APPEND weft_man_programs ${targets})
endforeach()
if(CMAKE_CROSSCOMPILING OR weft_programs_when) # they cannot run here, or are not built
  set(weft_man_programs)
else()
  list(APPEND weft_man_options --programs $<TARGET_FILE_DIR:weft_info>)
endif()

file(GLOB weft_man_parts ${PROJECT_SOURCE_DIR}/tools/man/*.py)
file(GLOB_RECURSE weft_man_examples ${PROJECT_SOURCE_DIR}/examples/*.[ch] ${PROJECT_SOURCE_DIR}/examples/*.cpp)
file(GLOB weft_man_docs ${PROJECT_SOURCE_DIR}/docs/environment.md ${PROJECT_SOURCE_DIR}/docs/weft-*.md)
file(MAKE_DIRECTORY ${weft_man}/man1 ${weft_man}/man3 ${weft_man}/man7)
add_custom_command(OUTPUT ${weft_man}/written
  COMMAND ${WEFT_PYTHON} ${PROJECT_SOURCE_DIR}/tools/man-pages ${weft_man_options}
  COMMAND ${CMAKE_COMMAND} -E touch ${weft_man}/written
  DEPENDS ${PROJECT_SOURCE_DIR}/tools/man-pages ${weft_man_parts} ${weft_man_headers} ${PROJECT_SOURCE_DIR}/README.md
    ${weft_man_docs} ${weft_man_examples} ${weft_man_programs}
  COMMENT "Writing the manual pages"
  VERBATIM)
add_custom_target(weft_man ALL DEPENDS ${weft_man}/written)

install(DIRECTORY ${weft_man}/man1 ${weft_man}/man3 ${weft_man}/man7 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT weft)
