# Builds the consumer with Lockstep's source tree inside of it, by add_subdirectory and by
# FetchContent: the program and its ready configurations are there, lockstep_add_run works, and
# nothing of Lockstep lies in the parent's build root.
#   cmake -DLOCKSTEP_SOURCE= -DSOURCE_DIR= -DWORK_DIR= -DCOMPILER= -DGENERATOR= -P inside_test.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output
                    ERROR_VARIABLE output)
    if(NOT result EQUAL 0)
        list(JOIN ARGN " " command)
        message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
    endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
foreach(fetch OFF ON)
    set(build ${WORK_DIR}/fetch-${fetch})
    # Unoptimized: it is the build that is tested, and this is the quickest.
    run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE_DIR} -B ${build} -DCMAKE_C_COMPILER=${COMPILER}
        -DLOCKSTEP_SOURCE=${LOCKSTEP_SOURCE} -DFETCH=${fetch} -DCMAKE_BUILD_TYPE=None
        -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_MPI=OFF)
    file(GLOB found RELATIVE ${build} ${build}/*)
    list(REMOVE_ITEM found CMakeCache.txt CMakeFiles CTestTestfile.cmake build.ninja Makefile
         cmake_install.cmake wrong.json lockstep _deps .cmake)
    if(found)
        message(FATAL_ERROR "in the parent's build root: found ${found}, wanted nothing")
    endif()
    if(fetch)  # built once, configured twice
        continue()
    endif()
    run(${CMAKE_COMMAND} --build ${build} --parallel 2)
    run(${CMAKE_CTEST_COMMAND} --test-dir ${build} --output-on-failure --no-tests=error)
    file(GLOB found RELATIVE ${build} ${build}/configs ${build}/lockstep.* ${build}/*.a)
    if(found OR NOT EXISTS ${build}/lockstep/lockstep)
        message(FATAL_ERROR "found ${found} in the parent's build root, wanted the program in "
                "${build}/lockstep")
    endif()
endforeach()
