package prestart

import (
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
)

// maxArguments bounds a message, in bytes: some flags and two paths.
const maxArguments = 64 << 10

// HandOver gives the keeper that waits its arguments and files. After an error it has none of them, and ends once waiting is closed.
func HandOver(waiting *os.File, arguments []string, files ...*os.File) error {
	var message []byte
	for _, argument := range arguments {
		message = append(append(message, argument...), 0)
	}
	numbers := make([]int, 0, len(files))
	for _, file := range files {
		numbers = append(numbers, int(file.Fd()))
	}
	if err := syscall.Sendmsg(int(waiting.Fd()), message, syscall.UnixRights(numbers...), nil, syscall.MSG_NOSIGNAL); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	return nil
}

// Await waits for what HandOver gives; io.EOF if the agent wants no keeper. The files' descriptors are returned as numbers.
func Await(descriptor int) (arguments []string, files []int, err error) {
	defer func() { _ = syscall.Close(descriptor) }()
	const maxFiles = 4
	message, control := make([]byte, maxArguments), make([]byte, syscall.CmsgSpace(maxFiles*4))
	var length, controlLength, flags int
	for {
		length, controlLength, flags, _, err = syscall.Recvmsg(descriptor, message, control, syscall.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	switch {
	case err != nil:
		return nil, nil, os.NewSyscallError("recvmsg", err)
	case length == 0:
		return nil, nil, io.EOF
	case flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0:
		return nil, nil, errors.New("the agent's message is longer than " + strconv.Itoa(maxArguments) + " bytes")
	}
	rights, err := syscall.ParseSocketControlMessage(control[:controlLength])
	if err != nil {
		return nil, nil, os.NewSyscallError("recvmsg", err)
	}
	for _, right := range rights {
		numbers, err := syscall.ParseUnixRights(&right)
		if err != nil {
			return nil, nil, os.NewSyscallError("recvmsg", err)
		}
		files = append(files, numbers...)
	}
	for begin, i := 0, 0; i < length; i++ {
		if message[i] == 0 {
			arguments, begin = append(arguments, string(message[begin:i])), i+1
		}
	}
	return arguments, files, nil
}
