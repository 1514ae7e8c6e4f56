package bus

import (
	"github.com/godbus/dbus/v5"
)

// call is a method call received from the bus.
type call struct {
	sender      string // unique name of the connection
	uid         uint32 // user of the connection
	serial      uint32
	path        dbus.ObjectPath
	kind        string // interface; "" = any that has the method
	member      string
	signature   string
	args        []any
	silent      bool // no answer is expected
	interactive bool // the caller allows polkit to prompt for a password

	object object // called object; has no interfaces if it is only a parent node
}

// newCall converts a message. The bus sets the sender and rejects calls without path and member.
func newCall(message *dbus.Message) *call {
	c := &call{
		serial: message.Serial(), args: message.Body,
		silent:      message.Flags&dbus.FlagNoReplyExpected != 0,
		interactive: message.Flags&dbus.FlagAllowInteractiveAuthorization != 0,
	}
	for i, argument := range c.args {
		if _, ok := argument.(dbus.Variant); ok {
			c.args[i] = nil // only Set has a variant argument, and Set always fails
		}
	}
	c.sender, _ = message.Headers[dbus.FieldSender].Value().(string)
	c.path, _ = message.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
	c.kind, _ = message.Headers[dbus.FieldInterface].Value().(string)
	c.member, _ = message.Headers[dbus.FieldMember].Value().(string)
	if signature, ok := message.Headers[dbus.FieldSignature].Value().(dbus.Signature); ok {
		c.signature = signature.String()
	}
	return c
}

// reply returns a reply with values.
func (c *call) reply(values []any) *dbus.Message {
	return c.message(dbus.TypeMethodReply, values)
}

// failure returns the error reply for err.
func (c *call) failure(err error) *dbus.Message {
	e := asError(err)
	message := c.message(dbus.TypeError, []any{text(e.Message)})
	message.Headers[dbus.FieldErrorName] = dbus.MakeVariant(e.Name)
	return message
}

func (c *call) message(kind dbus.Type, values []any) *dbus.Message {
	message := &dbus.Message{Type: kind, Flags: dbus.FlagNoReplyExpected, Body: values,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: dbus.MakeVariant(c.sender),
			dbus.FieldReplySerial: dbus.MakeVariant(c.serial),
		}}
	if len(values) > 0 {
		message.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(values...))
	}
	return message
}
