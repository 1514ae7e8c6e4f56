package bus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/godbus/dbus/v5"
)

// encode writes a message in the wire format, as a client would.
func encode(to io.Writer, message *dbus.Message) error {
	var frame bytes.Buffer
	if err := message.EncodeTo(&frame, binary.LittleEndian); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(frame.Bytes()[8:], 1) // serial, normally set by the connection
	_, err := to.Write(frame.Bytes())
	return err
}

// readAllFrames reads data as the bytes that a connection receives from the bus, and returns the
// method calls in them.
func readAllFrames(t testing.TB, data []byte) []*dbus.Message {
	t.Helper()
	var nameChanged []*dbus.Message
	w := newWire(nil, func(message *dbus.Message) { nameChanged = append(nameChanged, message) })
	w.reader = bufio.NewReader(bytes.NewReader(data))
	w.framed = true
	if _, err := io.Copy(io.Discard, struct{ io.Reader }{w}); err != nil && len(data) == 0 {
		t.Fatal(err)
	}
	return nameChanged
}

func TestOnlyAnswersAndTheBusItselfReachTheLibrary(t *testing.T) {
	header := func(sender string) map[dbus.HeaderField]dbus.Variant {
		return map[dbus.HeaderField]dbus.Variant{
			dbus.FieldSender:    dbus.MakeVariant(sender),
			dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/x")),
			dbus.FieldInterface: dbus.MakeVariant("a.b"), dbus.FieldMember: dbus.MakeVariant("M"),
			dbus.FieldReplySerial: dbus.MakeVariant(uint32(5)),
		}
	}
	cases := []struct {
		message *dbus.Message
		passed  bool
	}{
		{&dbus.Message{Type: dbus.TypeSignal, Headers: header(":1.5")}, false},
		{&dbus.Message{Type: dbus.TypeSignal, Headers: header(busName)}, true},
		{&dbus.Message{Type: dbus.TypeMethodReply, Headers: header(":1.5")}, true},
		{&dbus.Message{Type: dbus.TypeMethodCall, Headers: header(busName)}, false},
	}
	for _, c := range cases {
		ours, theirs := net.Pipe()
		w := newWire(ours, func(*dbus.Message) {})
		w.framed = true
		passed := make(chan int64, 1)
		go func() {
			n, _ := io.Copy(io.Discard, struct{ io.Reader }{w})
			passed <- n
		}()
		if err := encode(theirs, c.message); err != nil {
			t.Fatal(err)
		}
		_ = theirs.Close()
		if n := <-passed; (n > 0) != c.passed {
			t.Errorf("%v from %v: %d bytes reached the library", c.message.Type,
				c.message.Headers[dbus.FieldSender], n)
		}
		_ = ours.Close()
	}
}

// FuzzWire checks that arbitrary input causes no panic and that all passed calls are readable.
func FuzzWire(f *testing.F) {
	for _, message := range []*dbus.Message{
		callTo(managerPath, managerInterface, "Reload", uint64(1)),
		callTo(managerPath, propertiesName, "Set", managerInterface, "Version",
			dbus.MakeVariant(map[string]dbus.Variant{"a": dbus.MakeVariant([]string{"b"})})),
		callTo("/", peerName, "Ping"),
	} {
		var frame bytes.Buffer
		if err := encode(&frame, message); err != nil {
			f.Fatal(err)
		}
		f.Add(frame.Bytes())
	}
	f.Add([]byte("l\x01\x00\x01\xff\xff\xff\xff\x01\x00\x00\x00\xff\xff\xff\xff"))
	all, err := readInterfaces()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, message := range readAllFrames(t, data) {
			c := newCall(message)
			for _, one := range all {
				if method := one.method(c.member); method != nil && method.takes() == c.signature &&
					len(c.args) != len(method.argsIn()) {
					t.Errorf("%s has %d arguments of the types %q", c.member,
						len(c.args), c.signature)
				}
			}
		}
	})
}

func (m *methodOfXML) argsIn() (in []argOfXML) {
	for _, arg := range m.Args {
		if arg.Direction == "in" {
			in = append(in, arg)
		}
	}
	return in
}

func FuzzAddress(f *testing.F) {
	for _, seed := range []string{SystemAddress, "unix:abstract=/tmp/x,guid=1", "unix:path=/a%20b",
		"tcp:host=x", "unix:", "unix:path=%zz"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, address string) {
		if socket, err := socketOf(address); err == nil && (socket == "" || socket == "@") {
			t.Errorf("%q is the socket %q", address, socket)
		}
	})
}

func TestAddresses(t *testing.T) {
	for address, want := range map[string]string{
		SystemAddress: "/run/dbus/system_bus_socket", "unix:guid=1,path=/a%20b": "/a b",
		"unix:abstract=x": "@x",
		"tcp:host=x":      "", "unix:tmpdir=/x": "", "": "",
	} {
		if got, err := socketOf(address); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", address, got, err)
		}
	}
}

func FuzzEscapeLabel(f *testing.F) {
	f.Add("web-2")
	f.Add("9_é")
	seen := map[string]string{}
	f.Fuzz(func(t *testing.T, label string) {
		escaped := escapeLabel(label)
		if !dbus.ObjectPath("/" + escaped).IsValid() {
			t.Errorf("%q: %q is no element of a path", label, escaped)
		}
		if other, ok := seen[escaped]; ok && other != label {
			t.Errorf("%q and %q are both %q", label, other, escaped)
		}
		seen[escaped] = label
	})
}
