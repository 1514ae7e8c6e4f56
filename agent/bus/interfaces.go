package bus

import (
	_ "embed"
	"encoding/xml"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	packaged "outrider.org/outrider/packaging/dbus"
)

//go:embed standard.xml
var standardXML []byte

// Annotations that the agent reads.
const (
	annotationAction  = "org.outrider.Agent1.PolkitAction"
	annotationChanged = "org.freedesktop.DBus.Property.EmitsChangedSignal"
)

// description is an interface decoded from its XML.
type description struct {
	Name       string            `xml:"name,attr"`
	Methods    []methodOfXML     `xml:"method"`
	Signals    []signalOfXML     `xml:"signal"`
	Properties []propertyOfXML   `xml:"property"`
	Annotation []annotationOfXML `xml:"annotation"`
	Text       string            `xml:",innerxml"` // XML with comments
}

type methodOfXML struct {
	Name       string            `xml:"name,attr"`
	Args       []argOfXML        `xml:"arg"`
	Annotation []annotationOfXML `xml:"annotation"`
}

type signalOfXML struct {
	Name string     `xml:"name,attr"`
	Args []argOfXML `xml:"arg"`
}

type propertyOfXML struct {
	Name       string            `xml:"name,attr"`
	Type       string            `xml:"type,attr"`
	Access     string            `xml:"access,attr"`
	Annotation []annotationOfXML `xml:"annotation"`
}

type argOfXML struct {
	Name      string `xml:"name,attr"`
	Type      string `xml:"type,attr"`
	Direction string `xml:"direction,attr"`
}

type annotationOfXML struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

// interfaces holds the interfaces of the agent's objects by name.
type interfaces map[string]*description

// readInterfaces reads the interfaces of packaging/dbus and the standard ones.
func readInterfaces() (interfaces, error) {
	all := interfaces{}
	if err := all.add(standardXML); err != nil {
		return nil, fmt.Errorf("parse the XML of the standard D-Bus interfaces: %w", err)
	}
	files, err := fs.Glob(packaged.Interfaces, "interfaces/*.xml")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := packaged.Interfaces.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := all.add(text); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
	return all, nil
}

func (i interfaces) add(text []byte) error {
	var node struct {
		Interfaces []*description `xml:"interface"`
	}
	if err := xml.Unmarshal(text, &node); err != nil {
		return err
	}
	for _, one := range node.Interfaces {
		i[one.Name] = one
	}
	return nil
}

// signatures returns the set of all methods' input signatures.
func (i interfaces) signatures() map[string]bool {
	known := map[string]bool{}
	for _, one := range i {
		for _, method := range one.Methods {
			known[method.takes()] = true
		}
	}
	return known
}

// method returns a method by name, or nil.
func (d *description) method(name string) *methodOfXML {
	for i := range d.Methods {
		if d.Methods[i].Name == name {
			return &d.Methods[i]
		}
	}
	return nil
}

// property returns a property by name, or nil.
func (d *description) property(name string) *propertyOfXML {
	for i := range d.Properties {
		if d.Properties[i].Name == name {
			return &d.Properties[i]
		}
	}
	return nil
}

// takes returns the signature of the method's input arguments.
func (m *methodOfXML) takes() string {
	var types strings.Builder
	for _, arg := range m.Args {
		if arg.Direction == "in" {
			types.WriteString(arg.Type)
		}
	}
	return types.String()
}

// action returns the polkit action of a method; "" = everyone may call it.
func (m *methodOfXML) action() string { return annotated(m.Annotation, annotationAction, "") }

// emitted reports whether PropertiesChanged carries the property's new value.
func (p *propertyOfXML) emitted() bool {
	return annotated(p.Annotation, annotationChanged, "true") == "true"
}

func annotated(annotations []annotationOfXML, name, otherwise string) string {
	for _, a := range annotations {
		if a.Name == name {
			return a.Value
		}
	}
	return otherwise
}

// introspect returns the introspection XML of a node with interfaces and children.
func (i interfaces) introspect(names, children []string) string {
	var document strings.Builder
	document.WriteString(
		`<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">
<node>
`)
	for _, name := range names {
		fmt.Fprintf(&document, "  <interface name=%q>%s</interface>\n", name, i[name].Text)
	}
	for _, child := range slices.Sorted(slices.Values(children)) {
		fmt.Fprintf(&document, "  <node name=%q/>\n", child)
	}
	document.WriteString("</node>\n")
	return document.String()
}
