# The loops of examples/probe.rs that fill a run of slots, rustc 1.95.0, release. BLESS=1 cargo test rewrites this file.

post_batch:
    cmp %rcx,%rdx
    je out
    lea 0x18(%rdx),%r11
    mov (%rdx),%rbx
    mov 0x8(%rdx),%r13d
    mov 0x10(%rdx),%rdx
    bswap %r13d
    bswap %rbx
    or %r12,%r13
    mov %r13,-0x18(%r10)
    mov %rbx,-0x10(%r10)
    mov %r15,-0x8(%r10)
    movq $0x0,(%r10)
    mov %rdx,(%rsi,%r8,8)
    inc %r8
    add %rdi,%r10
    mov %r11,%rdx
    add $0xfffffffffffffff8,%r9
    jne loop

post_batch:
    cmp %rcx,%rdx
    je out
    lea 0x18(%rdx),%r11
    mov (%rdx),%rbx
    mov 0x8(%rdx),%r13d
    mov 0x10(%rdx),%rdx
    bswap %r13d
    bswap %rbx
    or %r12,%r13
    mov %r13,-0x8(%r10)
    mov %rbx,(%r10)
    mov %rdx,(%rsi,%r8,8)
    inc %r8
    add %rdi,%r10
    mov %r11,%rdx
    add $0xfffffffffffffff8,%r9
    jne loop

post_batch_address:
    cmp %rcx,%rdx
    je out
    lea 0x10(%rdx),%r11
    mov (%rdx),%r12
    mov 0x8(%rdx),%rdx
    bswap %r12
    mov %r12,(%r10)
    mov %rdx,(%rsi,%r9,8)
    inc %r9
    add %rdi,%r10
    mov %r11,%rdx
    add $0xfffffffffffffff8,%r8
    jne loop

post_slice:
    mov -0x18(%r13),%rdx
    movups -0x28(%r13),%xmm0
    movups %xmm0,0x10(%rdi,%r8,1)
    mov %rdx,-0x8(%rbx,%r10,8)
    mov 0x0(%r13),%rdx
    movups -0x10(%r13),%xmm0
    movups %xmm0,0x10(%rdi,%r15,1)
    mov %rdx,(%rbx,%r10,8)
    add $0x2,%r10
    add %r9,%rdi
    add $0x30,%r13
    cmp %r10,%r11
    jne loop

post_slice:
    mov -0x18(%rbx),%rdx
    movups -0x28(%rbx),%xmm0
    movups %xmm0,0x10(%rdi,%r8,1)
    mov %rbp,0x20(%rdi,%r8,1)
    movq $0x0,0x28(%rdi,%r8,1)
    mov %rdx,-0x8(%r13,%r10,8)
    mov (%rbx),%rdx
    movups -0x10(%rbx),%xmm0
    movups %xmm0,0x10(%rdi,%r15,1)
    mov %rbp,0x20(%rdi,%r15,1)
    movq $0x0,0x28(%rdi,%r15,1)
    mov %rdx,0x0(%r13,%r10,8)
    add $0x2,%r10
    add %r9,%rdi
    add $0x30,%rbx
    cmp %r10,%r11
    jne loop

post_slice_address:
    mov -0x18(%rbx),%r8
    mov -0x10(%rbx),%r14
    bswap %r8
    mov %r8,0x18(%rdi,%r9,1)
    mov %r14,-0x8(%r15,%r11,8)
    mov -0x8(%rbx),%r8
    mov (%rbx),%r14
    bswap %r8
    mov %r8,0x18(%rdi,%rbp,1)
    mov %r14,(%r15,%r11,8)
    add $0x2,%r11
    add %r10,%rdi
    add $0x20,%rbx
    cmp %r11,%r13
    jne loop
