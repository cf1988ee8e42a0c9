# The target `portable`: a folder that can be copied to another Linux machine of this architecture
# with a C library no older than this one's, and run there. Third-party libraries are linked in; a
# GPU needs its driver only.
set(LOCKSTEP_PORTABLE_DIR ${PROJECT_BINARY_DIR}/portable)
file(GLOB ready CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/apps/configs/*.json)
file(GLOB families CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/matrix/*.json)
file(GLOB published CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/apps/configs/published/*.json)
add_custom_target(portable
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${LOCKSTEP_PORTABLE_DIR}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${LOCKSTEP_PORTABLE_DIR}/configs/published
    COMMAND ${CMAKE_COMMAND} -E copy ${ready} ${LOCKSTEP_PORTABLE_DIR}/configs
    COMMAND ${CMAKE_COMMAND} -E copy ${published} ${LOCKSTEP_PORTABLE_DIR}/configs/published
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:lockstep_program>
            ${PROJECT_SOURCE_DIR}/LICENSE ${LOCKSTEP_PORTABLE_DIR}
    DEPENDS lockstep_program VERBATIM)
# With a GPU's part, everything that toolchain/gpu-check needs comes along, in the same places.
if(LOCKSTEP_TESTS AND LOCKSTEP_HAVE_CUDA)
    find_library(LOCKSTEP_CMOCKA_FILE cmocka REQUIRED)  # there is no static one
    get_filename_component(file ${LOCKSTEP_CMOCKA_FILE} REALPATH)
    string(REGEX MATCH "libcmocka\\.so\\.[0-9]+" name "${file}")
    set(programs gpu_kernels_test gpu_conv_kernels_test gpu_persistent_kernels_test
        gpu_persistent_conv_kernels_test gpu_sequence_test gpu_transducer_test gpu_update_test
        gpu_narrow_test gpu_measure gpu_ops lockstep_on_gpu)
    add_dependencies(portable gpu_tests)
    foreach(folder gpu tests/cuda/gpu tests/cuda/whole tests/whole tests/matrix tests/golden
                   tests/bench)
        add_custom_command(TARGET portable POST_BUILD VERBATIM
            COMMAND ${CMAKE_COMMAND} -E make_directory ${LOCKSTEP_PORTABLE_DIR}/${folder})
    endforeach()
    foreach(program IN LISTS programs)
        add_custom_command(TARGET portable POST_BUILD VERBATIM
            COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:${program}> ${LOCKSTEP_PORTABLE_DIR}/gpu)
    endforeach()
    foreach(script tests/cuda/whole/cuda_test.py tests/cuda/gpu/fast_gpu.py
                   tests/whole/program.py
                   tests/golden/digests.json tests/bench/peers_gpu.py tests/bench/peers_worker.py)
        add_custom_command(TARGET portable POST_BUILD VERBATIM
            COMMAND ${CMAKE_COMMAND} -E copy ${PROJECT_SOURCE_DIR}/${script}
                    ${LOCKSTEP_PORTABLE_DIR}/${script})
    endforeach()
    add_custom_command(TARGET portable POST_BUILD VERBATIM
        COMMAND ${CMAKE_COMMAND} -E copy ${families} ${LOCKSTEP_PORTABLE_DIR}/tests/matrix
        COMMAND ${CMAKE_COMMAND} -E copy ${file} ${LOCKSTEP_PORTABLE_DIR}/gpu/${name}
        COMMAND ${CMAKE_COMMAND} -E copy ${PROJECT_SOURCE_DIR}/toolchain/gpu-check
                ${LOCKSTEP_PORTABLE_DIR})
endif()
if(LOCKSTEP_TESTS)
    enable_testing()
    add_test(NAME portable
        COMMAND sh ${PROJECT_SOURCE_DIR}/tests/cuda/portable_test.sh ${LOCKSTEP_PORTABLE_DIR}
                ${PROJECT_BINARY_DIR}/portable_test $<BOOL:${LOCKSTEP_HAVE_CUDA}>)
    set_tests_properties(portable PROPERTIES TIMEOUT 120 LABELS portable)
endif()
