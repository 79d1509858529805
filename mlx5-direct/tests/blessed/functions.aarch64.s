# Functions of examples/probe.rs for arm64, rustc 1.95.0, release. BLESS=1 cargo test rewrites this file.

post_one:
    stp x29, x30, [sp, #-48]!
    stp x22, x21, [sp, #16]
    stp x20, x19, [sp, #32]
    mov x29, sp
    cbz x2, line46
    add x21, x1, x2, lsl #4
    mov x22, #0x100000
    mov x19, x1
    mov x20, x0
    movk x22, #0x7700, lsl #48
    b line28
    ldr w9, [x20, #168]
    ldp x10, x11, [x20, #104]
    umaddl x9, w9, w8, x10
    add w10, w8, #0x1
    str w10, [x20, #144]
    stp x22, x2, [x9, #16]
    str x3, [x11, x8, lsl #3]
    ldr w9, [x20, #160]
    dmb oshst
    add w8, w9, w8
    ldr x9, [x20, #176]
    rev w8, w8
    lsr w8, w8, #16
    strh w8, [x9, #2]
    add x19, x19, #0x10
    cmp x19, x21
    b.eq line46
    ldp x10, x3, [x19]
    ldr w8, [x20, #144]
    ldr w9, [x20, #152]
    cmp w8, w9
    rev x2, x10
    b.cc line11
    mov x1, #0x100000
    mov x0, x20
    movk x1, #0x7700, lsl #48
    bl out
    cmn w0, #0x1
    b.ne line25
    adrp x0, placed
    add x0, x0, placed
    adrp x2, placed
    add x2, x2, placed
    mov w1, #0x9
    bl out
    ldp x20, x19, [sp, #32]
    ldp x22, x21, [sp, #16]
    ldp x29, x30, [sp], #48
    ret

post_one_address:
    stp x29, x30, [sp, #-48]!
    str x21, [sp, #16]
    stp x20, x19, [sp, #32]
    mov x29, sp
    cbz x2, line43
    add x21, x1, x2, lsl #4
    mov x19, x1
    mov x20, x0
    b line27
    ldr w9, [x20, #168]
    ldp x10, x11, [x20, #104]
    umaddl x9, w9, w8, x10
    add w10, w8, #0x1
    str w10, [x20, #144]
    rev x10, x1
    str x10, [x9, #24]
    str x3, [x11, x8, lsl #3]
    ldr w9, [x20, #160]
    dmb oshst
    add w8, w9, w8
    ldr x9, [x20, #176]
    rev w8, w8
    lsr w8, w8, #16
    strh w8, [x9, #2]
    add x19, x19, #0x10
    cmp x19, x21
    b.eq line43
    ldr w8, [x20, #144]
    ldr w9, [x20, #152]
    ldp x1, x3, [x19]
    cmp w8, w9
    b.cc line9
    mov x0, x20
    mov x2, xzr
    bl out
    cmn w0, #0x1
    b.ne line24
    adrp x0, placed
    add x0, x0, placed
    adrp x2, placed
    add x2, x2, placed
    mov w1, #0x9
    bl out
    ldp x20, x19, [sp, #32]
    ldr x21, [sp, #16]
    ldp x29, x30, [sp], #48
    ret

post_batch:
    sub sp, sp, #0x70
    stp x29, x30, [sp, #48]
    str x23, [sp, #64]
    stp x22, x21, [sp, #80]
    stp x20, x19, [sp, #96]
    add x29, sp, #0x30
    ldr w8, [x0, #144]
    ldr w9, [x0, #160]
    ldp w11, w10, [x0, #88]
    add w8, w8, w9
    sub w8, w10, w8
    add w8, w8, w11
    adds w21, w8, #0x1
    b.eq line113
    mov w8, #0x18
    mov x19, x0
    mov w22, w21
    madd x2, x2, x8, x1
    adrp x8, placed
    mov x23, #0x7700000000000000
    ldr q0, [x8, placed]
    mov w8, w21
    str q0, [sp]
    ldp w11, w10, [x19, #144]
    subs w9, w10, w11
    cmp w8, w9
    csel w9, w8, w9, cc
    cmp w10, w11
    b.ne line37
    mov w13, wzr
    ldr w10, [x19, #144]
    cmp w13, w9
    sub w20, w8, w13
    add w10, w10, w13
    str w10, [x19, #144]
    b.cs line94
    b line116
    ldr w10, [x19, #168]
    ldp x14, x12, [x19, #104]
    umull x15, w10, w11
    cmp w10, #0x21
    add x11, x12, x11, lsl #3
    ubfiz x12, x9, #3, #32
    b.cc line67
    ldr w13, [x19, #172]
    cbnz w13, line67
    add x14, x14, x15
    mov x13, xzr
    add x14, x14, #0x20
    cmp x1, x2
    b.eq line106
    ldr w15, [x1, #8]
    ldr x16, [x1]
    subs x12, x12, #0x8
    ldr x17, [x1, #16]
    str q0, [x14]
    rev w15, w15
    rev x16, x16
    orr x15, x15, x23
    stp x15, x16, [x14, #-16]
    add x15, x1, #0x18
    add x14, x14, x10
    str x17, [x11, x13, lsl #3]
    add x13, x13, #0x1
    mov x1, x15
    b.ne line49
    b line86
    add x14, x14, x15
    mov x13, xzr
    add x14, x14, #0x18
    cmp x1, x2
    b.eq line88
    ldr w15, [x1, #8]
    ldr x16, [x1]
    subs x12, x12, #0x8
    ldr x17, [x1, #16]
    rev w15, w15
    rev x16, x16
    orr x15, x15, x23
    stp x15, x16, [x14, #-8]
    add x15, x1, #0x18
    add x14, x14, x10
    str x17, [x11, x13, lsl #3]
    add x13, x13, #0x1
    mov x1, x15
    b.ne line70
    mov x1, x15
    mov w13, w9
    ldr w10, [x19, #144]
    cmp w13, w9
    sub w20, w8, w13
    add w10, w10, w13
    str w10, [x19, #144]
    b.cc line116
    cbz w20, line116
    add x8, sp, #0x18
    mov x0, x19
    mov w3, w20
    bl out
    ldr w8, [sp, #24]
    cbz w8, line116
    ldp x1, x2, [sp, #32]
    subs w8, w20, w8
    ldr q0, [sp]
    b.ne line23
    b line115
    ldr w10, [x19, #144]
    cmp w13, w9
    sub w20, w8, w13
    add w10, w10, w13
    str w10, [x19, #144]
    b.cs line94
    b line116
    mov w22, wzr
    b line128
    mov w20, wzr
    cmp w21, w20
    b.eq line128
    ldr w8, [x19, #144]
    ldr w9, [x19, #160]
    dmb oshst
    mov w22, w20
    add w8, w9, w8
    ldr x9, [x19, #176]
    sub w8, w8, #0x1
    rev w8, w8
    lsr w8, w8, #16
    strh w8, [x9, #2]
    sub w0, w21, w22
    ldp x20, x19, [sp, #96]
    ldr x23, [sp, #64]
    ldp x22, x21, [sp, #80]
    ldp x29, x30, [sp, #48]
    add sp, sp, #0x70
    ret

post_slice:
    sub sp, sp, #0x70
    stp x29, x30, [sp, #48]
    str x23, [sp, #64]
    stp x22, x21, [sp, #80]
    stp x20, x19, [sp, #96]
    add x29, sp, #0x30
    ldr w8, [x0, #144]
    ldr w9, [x0, #160]
    ldp w11, w10, [x0, #88]
    add w8, w8, w9
    sub w8, w10, w8
    add w8, w8, w11
    add w8, w8, #0x1
    cmp x8, x2
    csel x20, x8, x2, cc
    cbz x20, line87
    adrp x8, placed
    mov x19, x0
    mov w23, #0x18
    ldr q1, [x8, placed]
    mov x8, x20
    str q1, [sp]
    ldp w12, w11, [x19, #144]
    subs w10, w11, w12
    cmp x8, x10
    csel x9, x8, x10, cc
    cmp w11, w12
    b.eq line59
    ldr w11, [x19, #168]
    ldp x14, x15, [x19, #104]
    umull x13, w11, w12
    cmp w11, #0x21
    add x12, x15, x12, lsl #3
    b.cc line48
    ldr w15, [x19, #172]
    cbnz w15, line48
    add x13, x14, x13
    add x14, x1, #0x10
    mov x15, x9
    add x13, x13, #0x20
    ldur q0, [x14, #-16]
    ldr x16, [x14], #24
    subs x15, x15, #0x1
    stp q0, q1, [x13, #-16]
    add x13, x13, x11
    str x16, [x12], #8
    b.ne line40
    b line59
    add x13, x14, x13
    add x14, x1, #0x10
    mov x15, x9
    add x13, x13, #0x10
    ldur q0, [x14, #-16]
    ldr x16, [x14], #24
    subs x15, x15, #0x1
    str q0, [x13]
    add x13, x13, x11
    str x16, [x12], #8
    b.ne line52
    ldr w11, [x19, #144]
    cmp x8, x10
    add w11, w11, w9
    str w11, [x19, #144]
    b.ls line79
    madd x21, x9, x23, x1
    sub x22, x8, x9
    mov x0, x19
    mov w3, w22
    madd x2, x8, x23, x1
    add x8, sp, #0x18
    mov x1, x21
    bl out
    ldr w0, [sp, #24]
    subs x8, x22, x0
    b.cc line94
    umaddl x1, w0, w23, x21
    ldr q1, [sp]
    b.ne line22
    ldr w11, [x19, #144]
    ldr w8, [x19, #160]
    dmb oshst
    ldr x9, [x19, #176]
    add w8, w8, w11
    sub w8, w8, #0x1
    rev w8, w8
    lsr w8, w8, #16
    strh w8, [x9, #2]
    mov w0, w20
    ldp x20, x19, [sp, #96]
    ldr x23, [sp, #64]
    ldp x22, x21, [sp, #80]
    ldp x29, x30, [sp, #48]
    add sp, sp, #0x70
    ret
    adrp x3, placed
    add x3, x3, placed
    mov x1, x22
    mov x2, x22
    bl out

send_inline:
    sub sp, sp, #0xe0
    stp x29, x30, [sp, #144]
    stp x26, x25, [sp, #160]
    stp x24, x23, [sp, #176]
    stp x22, x21, [sp, #192]
    stp x20, x19, [sp, #208]
    add x29, sp, #0x90
    cbz x2, line85
    add x8, x2, x2, lsl #2
    mov x24, #0xa000000
    mov w25, #0x80
    mov w21, #0x4
    mov w22, #0x20
    mov w23, #0x800
    lsl x20, x8, #3
    movk x24, #0x400, lsl #48
    movk w25, #0x2000, lsl #16
    ldr x8, [x0, #136]
    ldp x9, x10, [x0, #56]
    ldr x2, [x1, #32]
    ldr x8, [x8, #16]
    add x8, x8, x9
    cmp x10, x8
    b.mi line65
    ldp x12, x11, [x0, #72]
    and x9, x9, #0xffff
    ldp x13, x14, [x0, #32]
    lsl x10, x9, #3
    rev x9, x9
    str x8, [x0, #56]
    add x11, x11, x10, lsl #1
    add x10, x12, x10, lsl #3
    adds x9, x13, x9, lsr #40
    cinc x13, x14, cs
    stp x2, x8, [x11]
    rev w8, w8
    orr x12, x13, #0x8000000
    ldr x13, [x1]
    ldur x11, [x1, #4]
    ldur x14, [x1, #20]
    ldur x15, [x1, #12]
    ldr w16, [x1, #28]
    orr x13, x25, x13, lsl #32
    orr x9, x9, x24
    lsr w8, w8, #16
    stp x9, x12, [x10]
    stp x15, x14, [x10, #32]
    stp x16, xzr, [x10, #48]
    stp x13, x11, [x10, #16]
    dmb oshst
    ldr x10, [x0, #112]
    strh w8, [x10, #2]
    dsb st
    ldr x8, [x0, #128]
    stp x9, x12, [x8]
    stp x13, x11, [x8, #16]
    stp x15, x14, [x8, #32]
    stp x16, xzr, [x8, #48]
    eor x8, x8, #0x100
    hint #0x6
    str x8, [x0, #128]
    subs x20, x20, #0x28
    add x1, x1, #0x28
    b.ne line17
    b line85
    stp x1, x22, [sp, #120]
    mov x26, x1
    add x1, sp, #0x8
    str wzr, [sp, #8]
    mov x19, x0
    str w21, [sp, #64]
    strh w23, [sp, #136]
    bl out
    mov w8, w0
    mov x1, x26
    mov x0, x19
    and w8, w8, #0xff
    cmp w8, #0x2
    b.eq line61
    adrp x0, placed
    add x0, x0, placed
    adrp x2, placed
    add x2, x2, placed
    mov w1, #0x9
    bl out
    ldp x20, x19, [sp, #208]
    ldp x22, x21, [sp, #192]
    ldp x24, x23, [sp, #176]
    ldp x26, x25, [sp, #160]
    ldp x29, x30, [sp, #144]
    add sp, sp, #0xe0
    ret

send_segment:
    sub sp, sp, #0xd0
    stp x29, x30, [sp, #144]
    stp x24, x23, [sp, #160]
    stp x22, x21, [sp, #176]
    stp x20, x19, [sp, #192]
    add x29, sp, #0x90
    cbz x2, line75
    mov w8, #0x18
    mov x23, #0xa000000
    mov w21, #0x4
    madd x20, x2, x8, x1
    mov w22, #0x800
    movk x23, #0x200, lsl #48
    ldp x8, x9, [x1]
    ldr x2, [x1, #16]
    cbz w8, line55
    ldr x10, [x0, #136]
    ldp x11, x12, [x0, #56]
    ldr x10, [x10, #16]
    add x10, x10, x11
    cmp x12, x10
    b.mi line55
    ldp x15, x13, [x0, #72]
    and x11, x11, #0xffff
    ldp x14, x16, [x0, #32]
    lsl x12, x11, #3
    rev x11, x11
    str x10, [x0, #56]
    add x13, x13, x12, lsl #1
    add x12, x15, x12, lsl #3
    adds x11, x14, x11, lsr #40
    cinc x14, x16, cs
    stp x2, x10, [x13]
    rev w10, w10
    orr x11, x11, x23
    orr x13, x14, #0x8000000
    stp x8, x9, [x12, #16]
    stp x11, x13, [x12]
    lsr w10, w10, #16
    dmb oshst
    ldr x12, [x0, #112]
    strh w10, [x12, #2]
    dsb st
    ldr x10, [x0, #128]
    stp x11, x13, [x10]
    stp x8, x9, [x10, #16]
    eor x8, x10, #0x100
    stp xzr, xzr, [x10, #32]
    stp xzr, xzr, [x10, #48]
    hint #0x6
    str x8, [x0, #128]
    add x1, x1, #0x18
    cmp x1, x20
    b.ne line13
    b line75
    mov x24, x1
    add x1, sp, #0x8
    str wzr, [sp, #8]
    str w21, [sp, #64]
    mov x19, x0
    stp x8, x9, [sp, #120]
    strh w22, [sp, #136]
    bl out
    mov w8, w0
    mov x1, x24
    mov x0, x19
    and w8, w8, #0xff
    cmp w8, #0x2
    b.eq line51
    adrp x0, placed
    add x0, x0, placed
    adrp x2, placed
    add x2, x2, placed
    mov w1, #0x9
    bl out
    ldp x20, x19, [sp, #192]
    ldp x22, x21, [sp, #176]
    ldp x24, x23, [sp, #160]
    ldp x29, x30, [sp, #144]
    add sp, sp, #0xd0
    ret

send_prepared:
    stp x29, x30, [sp, #-64]!
    str x23, [sp, #16]
    stp x22, x21, [sp, #32]
    stp x20, x19, [sp, #48]
    mov x29, sp
    cbz x4, line75
    add x21, x3, x4, lsl #4
    ldp x9, x8, [x3]
    ldp x10, x12, [x0, #56]
    str x9, [x1, x2]
    ldr x9, [x0, #136]
    ldr x11, [x1, #336]
    ldr x9, [x9, #16]
    add x11, x10, x11
    add x9, x11, x9
    cmp x12, x9
    b.mi line56
    ldp x13, x12, [x0, #72]
    and x10, x10, #0xffff
    lsl x11, x10, #3
    ldp x15, x14, [x0, #32]
    str x9, [x0, #56]
    add x12, x12, x11, lsl #1
    stp x8, x9, [x12]
    rev x8, x10
    add x10, x13, x11, lsl #3
    ldp x13, x16, [x1]
    adds x8, x15, x8, lsr #40
    ldp x12, x11, [x1, #16]
    cinc x14, x14, cs
    ldp x18, x17, [x1, #32]
    rev w9, w9
    ldp x5, x4, [x1, #48]
    orr x8, x13, x8
    orr x13, x16, x14
    stp x12, x11, [x10, #16]
    lsr w9, w9, #16
    stp x18, x17, [x10, #32]
    stp x8, x13, [x10]
    stp x5, x4, [x10, #48]
    dmb oshst
    ldr x10, [x0, #112]
    strh w9, [x10, #2]
    dsb st
    ldr x9, [x0, #128]
    stp x8, x13, [x9]
    eor x8, x9, #0x100
    stp x12, x11, [x9, #16]
    stp x18, x17, [x9, #32]
    stp x5, x4, [x9, #48]
    hint #0x6
    str x8, [x0, #128]
    add x3, x3, #0x10
    cmp x3, x21
    b.ne line7
    b line75
    mov x22, x2
    mov x2, x8
    mov x19, x0
    mov x20, x1
    mov x23, x3
    bl out
    mov x1, x20
    mov x2, x22
    and w8, w0, #0xff
    mov x3, x23
    mov x0, x19
    cmp w8, #0x2
    b.eq line52
    adrp x0, placed
    add x0, x0, placed
    adrp x2, placed
    add x2, x2, placed
    mov w1, #0x9
    bl out
    ldp x20, x19, [sp, #48]
    ldr x23, [sp, #16]
    ldp x22, x21, [sp, #32]
    ldp x29, x30, [sp], #64
    ret

poll_sends:
    stp x29, x30, [sp, #-80]!
    str x25, [sp, #16]
    stp x24, x23, [sp, #32]
    stp x22, x21, [sp, #48]
    stp x20, x19, [sp, #64]
    mov x29, sp
    cbz w2, line50
    ldr x23, [x1, #16]
    ldr w24, [x1, #96]
    mov w19, w2
    ldr x25, [x1, #160]
    ldr x8, [x0, #48]
    mov x20, x1
    mov x21, x0
    mov x22, xzr
    b line22
    ldr x9, [x9]
    mov x25, x10
    str x10, [x20, #160]
    subs w19, w19, #0x1
    add x22, x9, x22
    b.eq line51
    ldr x9, [x21, #64]
    cmp x8, x9
    b.cc line32
    mov x0, x21
    bl out
    ldp w9, w10, [x21, #80]
    ldr w8, [x21, #32]
    and w8, w9, w8
    ldr x9, [x21, #40]
    umaddl x8, w10, w8, x9
    ldrb w10, [x21, #108]
    ldr w9, [x8, #60]
    rev w9, w9
    cmp w10, w9, uxtb
    b.ne line51
    dmb oshld
    and w9, w24, w9, lsr #16
    ldr w10, [x21, #84]
    add x9, x23, w9, uxtw #4
    add x8, x8, x10
    str x8, [x21, #48]
    ldr x10, [x9, #8]
    cmp x10, x25
    b.hi line16
    subs w19, w19, #0x1
    add x22, xzr, x22
    b.ne line22
    b line51
    mov x22, xzr
    mov x0, x22
    ldp x20, x19, [sp, #64]
    ldr x25, [sp, #16]
    ldp x22, x21, [sp, #48]
    ldp x24, x23, [sp, #32]
    ldp x29, x30, [sp], #80
    ret
