# Installs the build into a prefix, moves the prefix elsewhere, and builds and runs the consumer
# against it: by find_package, by pkg-config; the examples, from where they are installed; then
# compiles every installed header by itself, and looks that no private one is installed.
#   cmake -DBUILD_DIR= -DSOURCE_DIR= -DWORK_DIR= -DCOMPILER= -DFLAGS= -DGENERATOR= -DLIBDIR=
#         -P consumer_test.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output
                    ERROR_VARIABLE output)
    if(NOT result EQUAL 0)
        list(JOIN ARGN " " command)
        message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
    endif()
endfunction()

set(prefix ${WORK_DIR}/moved)
file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/staged)
file(RENAME ${WORK_DIR}/staged ${prefix})

message(STATUS "find_package")
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE_DIR} -B ${WORK_DIR}/by_cmake
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${COMPILER} -DCMAKE_C_FLAGS=${FLAGS})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/by_cmake)
run(${CMAKE_CTEST_COMMAND} --test-dir ${WORK_DIR}/by_cmake --output-on-failure --no-tests=error)

message(STATUS "measurements, as a dashboard gets them; an accepted digest")
file(COPY ${SOURCE_DIR}/accept DESTINATION ${WORK_DIR})
set(accept ${WORK_DIR}/accept)
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${accept} -B ${accept}/build -DCMAKE_PREFIX_PATH=${prefix})
execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${accept}/build -D ExperimentalTest
                RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
if(result EQUAL 0)
    message(FATAL_ERROR "a digest of zeros was found equal")
endif()
run(${CMAKE_COMMAND} -E env LOCKSTEP_ACCEPT=1 ${CMAKE_CTEST_COMMAND} --test-dir ${accept}/build)
run(${CMAKE_COMMAND} ${accept}/build)
run(${CMAKE_CTEST_COMMAND} --test-dir ${accept}/build --no-tests=error -D ExperimentalTest)
file(GLOB documents ${accept}/build/Testing/*/Test.xml)
list(GET documents -1 document)
file(READ ${document} text)
foreach(name "accuracy, per cent" "steps per second" "arena bytes")
    if(NOT text MATCHES "name=\"${name}\">[ \n\t]*<Value>[0-9.]+</Value>")
        message(FATAL_ERROR "${document} has no measurement \"${name}\"")
    endif()
endforeach()

message(STATUS "pkg-config")
find_program(PKG_CONFIG NAMES pkg-config pkgconf REQUIRED)
execute_process(COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${prefix}/${LIBDIR}/pkgconfig
                        ${PKG_CONFIG} --cflags --libs lockstep
                OUTPUT_VARIABLE answer COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(answer UNIX_COMMAND "${answer}")
separate_arguments(flags UNIX_COMMAND "${FLAGS}")
run(${COMPILER} -std=c11 ${flags} ${SOURCE_DIR}/main.c -o ${WORK_DIR}/by_pkg_config ${answer})
run(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${prefix}/${LIBDIR} ${WORK_DIR}/by_pkg_config)

message(STATUS "examples")
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${prefix}/share/lockstep/examples -B ${WORK_DIR}/examples
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${COMPILER}
    "-DCMAKE_C_FLAGS=${FLAGS} -Wall -Wextra -Werror")
run(${CMAKE_COMMAND} --build ${WORK_DIR}/examples)
run(${CMAKE_CTEST_COMMAND} --test-dir ${WORK_DIR}/examples --output-on-failure --no-tests=error)

message(STATUS "headers")
file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/*)
if(NOT headers STREQUAL "lockstep/lockstep.h")
    message(FATAL_ERROR "found headers ${headers}, wanted lockstep/lockstep.h alone")
endif()
foreach(header IN LISTS headers)
    run(${COMPILER} -std=c99 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I${prefix}/include
        -include ${header} -x c /dev/null)
    run(${COMPILER} -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I${prefix}/include
        -include ${header} -x c++ /dev/null)
endforeach()
